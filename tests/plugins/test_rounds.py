"""The engines of verl and NeMo-RL, driven as their managers drive them."""

import asyncio

import pytest
import torch
from tensorbus.errors import PeerLostError


def weights(seed: int) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)  # not torch's own: several may ask at a time
    return {f"layer.{number}.weight": torch.randn(30, 20, generator=random) for number in range(9)}


async def collect(items) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() async for name, tensor in items}


def build_group(cls, actors, rollouts) -> None:
    """What verl's manager does before every transfer."""
    metadata = [engine.prepare() for engine in [*actors, *rollouts]]
    sides = cls.build_topology(len(actors), len(rollouts), metadata)
    for engines, arguments in zip((actors, rollouts), sides, strict=True):
        assert all(len(values) == len(engines) for values in arguments.values())
        for rank, engine in enumerate(engines):
            engine.init_process_group(**{key: each[rank] for key, each in arguments.items()})


async def transfer(actors, rollouts, seed: int, step: int) -> list[dict[str, torch.Tensor]]:
    results = await asyncio.gather(
        *(actor.send_weights(iter(weights(seed).items()), global_steps=step) for actor in actors),
        *(collect(rollout.receive_weights(global_steps=step)) for rollout in rollouts),
    )
    assert all(each["tensorbus/buckets"] > 2 for each in results[: len(actors)])
    for engine in [*actors, *rollouts]:
        engine.finalize()
    return results[len(actors) :]


@pytest.fixture
def verl(load_plugin, url):
    """Makes engines as verl does, and closes them."""
    load_plugin("tensorbus.verl")
    registry = load_plugin("verl.checkpoint_engine.base").CheckpointEngineRegistry
    made = []

    def new(is_master: bool | None = None, **options):
        more = {} if is_master is None else {"is_master": is_master}
        made.append(
            registry.new("tensorbus", bucket_size=5000, store=url, timeout=20.0, **more, **options)
        )
        return made[-1]

    yield new
    for engine in made:
        engine._rounds.close()


@pytest.mark.proves("G2.2")
def test_verls_rollout_workers_come_and_go(verl):
    actors = [verl(is_master=rank == 0) for rank in range(2)]
    rollouts = [verl() for _ in range(3)]
    for step, there in enumerate([rollouts, rollouts[1:], [*rollouts[1:], verl()]]):
        build_group(type(actors[0]), actors, there)
        received = asyncio.run(transfer(actors, there, seed=step, step=step))
        expected = {name: each.to(torch.bfloat16) for name, each in weights(step).items()}
        for each in received:
            assert each.keys() == expected.keys()
            assert all(torch.equal(each[name], expected[name]) for name in expected)


@pytest.mark.proves("G2.3")
def test_verl_goes_on_without_a_worker_that_is_gone(verl):
    actors = [verl(is_master=True, rollout_dtype=None)]
    rollouts = [verl(), verl()]

    async def die_during_it():
        send = asyncio.ensure_future(actors[0].send_weights(iter(weights(1).items())))
        receive = asyncio.ensure_future(collect(rollouts[0].receive_weights()))
        await rollouts[1].receive_weights().__anext__()
        rollouts[1]._rounds.close()
        return await asyncio.gather(send, receive, return_exceptions=True)

    build_group(type(actors[0]), actors, rollouts)
    sent, received = asyncio.run(die_during_it())
    assert isinstance(sent, PeerLostError)
    assert rollouts[1]._rounds.member in str(sent)
    assert isinstance(received, RuntimeError)
    build_group(type(actors[0]), actors, rollouts[:1])
    (again,) = asyncio.run(transfer(actors, rollouts[:1], seed=2, step=2))
    assert torch.equal(again["layer.3.weight"], weights(2)["layer.3.weight"])


def test_without_a_store_the_first_actor_serves_one(verl, monkeypatch):
    monkeypatch.delenv("TENSORBUS_STORE", raising=False)
    actors = [verl(is_master=True, rollout_dtype="float32")]
    rollouts = [verl()]
    for engine in [*actors, *rollouts]:
        engine._rounds._url = None
    build_group(type(actors[0]), actors, rollouts)
    (received,) = asyncio.run(transfer(actors, rollouts, seed=3, step=0))
    assert torch.equal(received["layer.0.weight"], weights(3)["layer.0.weight"])


def test_mistakes_are_named(verl):
    with pytest.raises(ValueError, match="there is no type 'bfloat17'"):
        verl(rollout_dtype="bfloat17")
    lonely = verl()
    with pytest.raises(ValueError, match="no worker was told that it is the master"):
        build_group(type(lonely), [lonely], [verl()])
    with pytest.raises(RuntimeError, match="did not join the round as a sender"):
        asyncio.run(lonely.send_weights(iter(())))


@pytest.mark.proves("G2.2")
def test_nemo_rls_engines_hand_over_batches(load_plugin, url):
    plugin = load_plugin("tensorbus.nemo_rl")
    engines = [
        plugin.TensorBusCheckpointEngine(bucket_size=5000, store=url, timeout=20.0)
        for _ in range(4)
    ]
    policy, rollouts = engines[:2], engines[2:]

    async def batches(engine):
        return [batch async for batch in engine.receive_weight_batches()]

    async def refit(seed: int):
        return await asyncio.gather(
            *(engine.send_weights(iter(weights(seed).items())) for engine in policy),
            *(batches(engine) for engine in rollouts),
        )

    for seed in range(2):
        group = {"train_world_size": 2, "rollout_world_size": 2}
        # Its workers add their ranks to what an engine says of itself.
        group["metadata"] = [{**engine.prepare(), "rank": 0} for engine in engines]
        for rank, engine in enumerate(policy):
            engine.init_policy_process_group(worker_rank=rank, **group)
        for rank, engine in enumerate(rollouts):
            engine.init_rollout_process_group(rollout_rank=rank, **group)
        for received in asyncio.run(refit(seed))[2:]:
            assert len(received) > 2, "several batches"
            found = dict(item for batch in received for item in batch)
            expected = weights(seed)
            assert found.keys() == expected.keys()
            assert all(torch.equal(found[name], expected[name]) for name in expected)
        for engine in engines:
            engine.finalize()
    with pytest.raises(ValueError, match=r"4 workers have said who they are, 2 \+ 1"):
        policy[0].init_policy_process_group(worker_rank=0, **group | {"rollout_world_size": 1})
    for engine in engines:
        engine._rounds.close()


def test_nemo_rl_needs_a_store(load_plugin, monkeypatch):
    monkeypatch.delenv("TENSORBUS_STORE", raising=False)
    with pytest.raises(ValueError, match="no store: give store= or set TENSORBUS_STORE"):
        load_plugin("tensorbus.nemo_rl").TensorBusCheckpointEngine(bucket_size=5000)
