"""Two groups of Ray actors hold the same model differently; the bus moves it from one to the other.

Trainers hold rows in float32, engines columns in bfloat16. No launch scripts, no ranks to set: the
actors get agents from `tensorbus.ray.agents`.

    python examples/ray_reshard.py
"""

import ray
import tensorbus
import tensorbus.ray
import torch
from tensorbus import Shard

TRAINERS, ENGINES = 2, 3
SHAPES = {"embedding": (600, 96), "up": (384, 96), "down": (96, 384)}


def model(step: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


@ray.remote(num_cpus=0)
class Trainer:
    def join(self, mine: int) -> None:
        self.mine = mine
        client = tensorbus.ray.client()
        client.init_pair("weights", "trainers", "engines", TRAINERS, (TRAINERS,), [Shard(0)])
        self.rows = {name: tensorbus.share_(part) for name, part in self.part(0).items()}
        self.batch = client.register_tensors(
            "model", [(tensor, "weights", name) for name, tensor in self.rows.items()]
        )

    def part(self, step: int) -> dict[str, torch.Tensor]:
        return {
            name: weight.chunk(TRAINERS, 0)[self.mine].clone()
            for name, weight in model(step).items()
        }

    def send(self, step: int) -> None:
        for name, part in self.part(step).items():
            self.rows[name].copy_(part)
        self.batch.transfer("send", blocking=True)


@ray.remote(num_cpus=0)
class Engine:
    def join(self, mine: int) -> None:
        self.mine = mine
        client = tensorbus.ray.client()
        client.init_pair("weights", "engines", "trainers", ENGINES, (ENGINES,), [Shard(1)])
        self.columns = {
            name: tensorbus.empty(part.shape, torch.bfloat16) for name, part in self.part(0).items()
        }
        self.batch = client.register_tensors(
            "model", [(tensor, "weights", name) for name, tensor in self.columns.items()]
        )

    def part(self, step: int) -> dict[str, torch.Tensor]:
        return {
            name: weight.chunk(ENGINES, 1)[self.mine].to(torch.bfloat16)
            for name, weight in model(step).items()
        }

    def receive(self, step: int) -> bool:
        self.batch.transfer("recv", blocking=True)
        return all(torch.equal(self.columns[name], part) for name, part in self.part(step).items())


def main() -> None:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    trainers = [Trainer.remote() for _ in range(TRAINERS)]
    engines = [Engine.remote() for _ in range(ENGINES)]
    with tensorbus.ray.agents([*trainers, *engines]):
        ray.get(
            [actor.join.remote(i) for side in (trainers, engines) for i, actor in enumerate(side)]
        )
        for step in range(3):
            sent = [trainer.send.remote(step) for trainer in trainers]
            right = ray.get([engine.receive.remote(step) for engine in engines])
            ray.get(sent)
            print(f"step {step}: {'all engines have the new weights' if all(right) else 'WRONG'}")
            if not all(right):
                raise SystemExit(1)
    ray.shutdown()


if __name__ == "__main__":
    main()
