"""`vllm serve`: updates over HTTP, engines that start from a living trainer."""

import pytest
import tensorbus
import tiny_models
import torch
from safetensors.torch import load_file
from served import Server
from tensorbus.kvstore import StoreServer
from tensorbus.trl import WeightTransfer
from trainers import Trainers
from trl_trainer import synchronize

pytestmark = pytest.mark.timeout(3600)


def from_trainer(store: str) -> list[str]:
    return ["--load-format=tensorbus", f'--model-loader-extra-config={{"store": "{store}"}}']


@pytest.mark.proves("G1.2", "G1.4", "G1.5", "G2.2")
def test_a_server_starts_from_a_trainer_is_updated_killed_and_starts_again(tmp_path):
    model = tiny_models.save("llama", 0, tmp_path)
    (model / "model.safetensors").unlink()  # there are no weights on the disk
    trainers = Trainers(2)
    try:
        with StoreServer("127.0.0.1", 0) as store:
            where = {"store": store.url, "mode": "staged", "kind": "llama"}
            trainers.tell("open", server=None, **where)
            trainers.tell("send", kind="llama", seed=1)
            with Server(model, *from_trainer(store.url)) as server:
                server.wait()
                assert server.tokens() == tiny_models.greedy_tokens("llama", 1)
                for seed, source in ((4, "TensorBusSource"), (5, "ModuleSource")):
                    opened = trainers.tell(
                        "open_with_vllm", server=server.url, source=source, **where
                    )
                    assert opened == ["TensorBusTrainerEngine"] * 2
                    version, other = trainers.tell("send", kind="llama", seed=seed)
                    assert version == other
                    assert server.tokens() == tiny_models.greedy_tokens("llama", seed), source
                    assert server.ask("weight_info")["weight_version"] == str(version)
                trainers.tell("open", server=server.url, **where)
                (version, _) = trainers.tell("send", kind="llama", seed=2)
                assert server.tokens() == tiny_models.greedy_tokens("llama", 2)
                assert server.ask("weight_info")["weight_version"] == str(version)
                transfer = WeightTransfer(
                    server.url, store.url, sender="trl", dtype=torch.bfloat16, timeout=60.0
                )
                learned = tiny_models.save("llama", 3, tmp_path)
                assert synchronize(learned, server.url, transfer, tmp_path / "trl") == [1]
                assert server.tokens() == tiny_models.greedy_tokens("llama", 3)
            with Server(model, *from_trainer(store.url)) as again:
                again.wait()
                assert again.tokens() == tiny_models.greedy_tokens("llama", 2)
    finally:
        trainers.kill()


@pytest.mark.proves("G1.4")
def test_a_mixture_of_experts_starts_from_a_trainer(tmp_path):
    model = tiny_models.save("moe", 6, tmp_path)
    checkpoint = load_file(model / "model.safetensors")  # whose experts have names of their own
    (model / "model.safetensors").unlink()
    with (
        StoreServer("127.0.0.1", 0) as store,
        tensorbus.TensorBusClient.embedded(store.url) as client,
        client.link("trainer") as link,
        Server(model, *from_trainer(store.url), "--tensor-parallel-size=2") as server,
    ):
        link.publish("policy", checkpoint)
        server.wait()
        assert server.tokens() == tiny_models.greedy_tokens("moe", 6)
