"""Updates of vLLM engines by FSDP2 trainers, bit for bit as vLLM loads the same from a disk."""

from collections.abc import Iterator

import pytest
import tiny_models
from processes import Process, ServerProcess
from served import Engine
from trainers import Trainers, answer

pytestmark = pytest.mark.timeout(3600)

# A model, the tensor-parallel ranks of its engine.
ENGINES = [
    ("llama", 1), ("llama", 2), ("qwen2", 1), ("qwen2", 2), ("gemma", 1), ("gemma", 2)
]  # fmt: skip
WAYS = [(ranks, mode) for ranks in (1, 2, 3) for mode in ("staged", "direct", "auto")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module", params=ENGINES, ids=lambda each: f"{each[0]}-tp{each[1]}")
def engine(request, folder) -> Iterator[tuple[str, Engine]]:
    kind, ranks = request.param
    engine = Engine(tiny_models.save(kind, 0, folder), ranks)
    yield kind, engine
    engine.close()


@pytest.fixture(scope="module")
def store() -> Iterator[str]:
    """In a process of its own: vLLM forks this one."""
    server = ServerProcess(lambda *command: Process(list(command)), 0, [])
    yield server.url
    server.kill()


@pytest.fixture(scope="module")
def trainers() -> Iterator[dict[int, Trainers]]:
    """By their ranks, started when somebody needs them."""
    started: dict[int, Trainers] = {}
    yield started
    for each in started.values():
        each.kill()


@pytest.mark.proves("G1.2", "G1.3")
def test_what_trainers_send_is_what_vllm_loads(engine, store, trainers, unique):
    kind, served = engine
    from_disk, packs = served.checksums(), served.packs()
    from_disk_tokens = tiny_models.greedy_tokens(kind, 0)
    assert served.tokens() == from_disk_tokens
    expected = tiny_models.greedy_tokens(kind, 7)
    for number, (ranks, mode) in enumerate(WAYS):
        group = trainers.setdefault(ranks, None) or Trainers(ranks)
        trainers[ranks] = group
        way = f"{kind}, {ranks} trainer ranks, {mode}"
        opened = group.tell(
            "open", store=f"{store}/{unique}-{number}", mode=mode, server=served.url, kind=kind
        )
        if mode == "direct" and packs:
            assert "cannot be filled in place" in opened[0]["error"], way
            assert "computes with a packed copy" in opened[0]["error"], way
            assert opened[1:] == ["open"] * (ranks - 1), way
            group.tell("close")
            continue
        assert opened == ["open"] * ranks, way
        served.forget()
        assert group.tell("send", kind=kind, seed=0) == [1] * ranks, way
        after = served.checksums()
        assert [name for name in from_disk if after[name] != from_disk[name]] == [], way
        assert served.tokens() == from_disk_tokens, "what is packed has no checksum"
        assert served.version() == "1", way
        assert group.tell("send", kind=kind, seed=7) == [2] * ranks, way
        assert served.tokens() == expected, way
        group.tell("close")


@pytest.mark.proves("G1.3", "G1.5")
@pytest.mark.parametrize("mode", ["staged", "direct"])
def test_a_trainer_killed_in_the_middle_of_an_update(engine, store, unique, mode):
    kind, served = engine
    if kind != "llama":
        pytest.skip("what happens then is the same for all models")
    if mode == "direct" and served.packs():
        mode = "auto"  # which fills in place what it can
    where = {"store": f"{store}/{unique}", "mode": mode, "server": served.url, "kind": kind}
    group = Trainers(2)
    try:
        group.tell("open", **where, timeout=60.0)
        group.tell("send", kind=kind, seed=3)
        assert served.tokens() == tiny_models.greedy_tokens(kind, 3)
        # The engine pulls a version of which the second rank has published nothing.
        first, second = group.members
        group.tell_one(first, "send", kind=kind, seed=4)
        assert not first.has_line(3.0), "it waits for the engine"
        second.kill()
        failed = answer(first)
        assert "error" in failed, failed
    finally:
        group.kill()
    assert served.paused == (mode != "staged"), "what is undefined is not served"
    if mode == "staged":
        assert served.tokens() == tiny_models.greedy_tokens(kind, 3)
    group = Trainers(2)
    try:
        assert group.tell("open", **where) == ["open"] * 2
        group.tell("send", kind=kind, seed=5)
        assert not served.paused
        assert served.tokens() == tiny_models.greedy_tokens(kind, 5)
    finally:
        group.kill()
