"""tensorbus.checkpoint under torch.distributed.checkpoint, between real processes."""

import base64
import json
import sys
from collections.abc import Callable
from pathlib import Path

import checkpoint_member
import pytest
import tensorbus
import torch
import torch.distributed.checkpoint as dcp
from processes import Process, Start, free_port
from tensorbus.checkpoint import TensorBusReader, TensorBusWriter, forget, load, save
from tensorbus.checkpoint.metadata import decode
from tensorbus.errors import PeerLostError, VersionGoneError
from tensorbus.kvstore import StoreServer, connect

MEMBER = str(Path(checkpoint_member.__file__))
StartJob = Callable[..., list[Process]]


@pytest.fixture
def checkpoint_id(store_server: StoreServer, unique: str) -> str:
    return f"{store_server.url}/{unique}/policy"


@pytest.fixture
def start_job(start_program: Start, checkpoint_id: str) -> StartJob:
    def start(role: str, size: int, dim: int) -> list[Process]:
        port = free_port()
        ranks = [
            start_program(
                sys.executable, "-u", MEMBER, role, *map(str, (rank, size, port)), checkpoint_id,
                str(dim),
            )
            for rank in range(size)
        ]  # fmt: skip
        for process in ranks:
            assert process.line(60) == "ready"
        return ranks

    return start


def nested() -> dict:
    return {
        "model": {"weight": torch.arange(12.0).reshape(3, 4), "empty": torch.ones(0, 2)},
        "optimizer": {"state": [torch.tensor(3), torch.ones(2, dtype=torch.bfloat16)]},
        "scalar": torch.tensor(2.5),
        "flags": torch.tensor([True, False]),
        "strided": torch.arange(24.0).reshape(4, 6).t()[::2],
        "step": 7,
        "rate": 0.5,
        "name": "run",
        "blob": b"\x00\xff",
        "nothing": None,
    }


def zeroed(tree):
    if isinstance(tree, dict):
        return {key: zeroed(each) for key, each in tree.items()}
    if isinstance(tree, list):
        return [zeroed(each) for each in tree]
    return torch.zeros_like(tree) if isinstance(tree, torch.Tensor) else "?"


def same(left, right) -> bool:
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    return torch.equal(left, right) if isinstance(left, torch.Tensor) else left == right


@pytest.mark.proves("G3.1")
@pytest.mark.parametrize(
    ("sizes", "dims"),
    [
        ((2, 3), (0, 1)),
        pytest.param((3, 2), (1, -1), marks=pytest.mark.long),
        pytest.param((1, 2), (-1, 0), marks=pytest.mark.long),
    ],
)
def test_any_layout_is_loaded_into_any_other(start_job: StartJob, sizes, dims):
    savers = start_job("save", sizes[0], dims[0])
    loaders = start_job("load", sizes[1], dims[1])
    for version in (1, 2):
        for process in savers:
            process.tell("")
        assert [process.line(60) for process in savers] == [str(version)] * sizes[0]
    for wanted, expected in (("", 2), ("1", 1)):
        for process in loaders:
            process.tell(wanted)
        for process in loaders:
            assert process.line(60) == f"{expected} True {expected} v{expected}"


@pytest.mark.proves("G3.1")
def test_a_writer_that_is_gone_is_named(start_job: StartJob):
    savers = start_job("save", 2, 0)
    loaders = start_job("load", 1, -1)
    for process in savers:
        process.tell("")
    for process in savers:
        assert process.line(60) == "1"
    savers[1].kill()
    loaders[0].tell("")
    line = loaders[0].line(60)
    assert line.startswith("PeerLostError"), line
    assert "version 1" in line
    # Either its lease has lapsed, or reading from it has failed.
    assert "rank 1 is gone" in line or "pid" in line


@pytest.mark.proves("G3.1")
def test_one_process_saves_and_loads_without_a_group(checkpoint_id: str):
    original = nested()
    assert save(original, checkpoint_id) == 1
    original["model"]["weight"].fill_(-1)  # it was copied
    loaded = zeroed(nested())
    assert load(loaded, checkpoint_id) == 1
    assert same(loaded, nested())
    assert save(nested(), checkpoint_id) == 2
    with pytest.raises(VersionGoneError, match=r"version 1 of .* is not kept; there are 2"):
        load(loaded, checkpoint_id, version=1)
    with pytest.raises(TimeoutError, match=r"version 9 of .*/policy was not saved in 0\.2 s"):
        load(loaded, checkpoint_id, version=9, timeout=0.2)


@pytest.mark.proves("G3.1")
def test_as_many_versions_as_are_kept_can_be_loaded(checkpoint_id: str):
    for version in range(1, 6):
        assert save({"a": torch.tensor([version])}, checkpoint_id, keep=3) == version
    for version in (3, 4, 5):
        target = {"a": torch.tensor([0])}
        assert load(target, checkpoint_id, version=version) == version
        assert target["a"].item() == version
    with pytest.raises(VersionGoneError, match="there are 3, 4, 5"):
        load({"a": torch.tensor([0])}, checkpoint_id, version=2)


def test_memory_comes_back(checkpoint_id: str):
    big = {"a": torch.ones(1_000_000)}
    save(big, checkpoint_id)
    lent = tensorbus.pool.use()["lent"]
    for _ in range(3):
        save(big, checkpoint_id)
        assert tensorbus.pool.use()["lent"] <= lent + 100_000
    forget(checkpoint_id)
    assert tensorbus.pool.use()["lent"] <= lent - 3_900_000


@pytest.mark.proves("G3.1")
def test_torchs_own_calls_take_the_storage(checkpoint_id: str):
    dcp.save(nested(), storage_writer=TensorBusWriter(checkpoint_id), no_dist=True)
    dcp.save(nested(), checkpoint_id=checkpoint_id, storage_writer=TensorBusWriter(), no_dist=True)
    loaded = zeroed(nested())
    reader = TensorBusReader(checkpoint_id)
    dcp.load(loaded, storage_reader=reader, no_dist=True)
    assert same(loaded, nested())
    assert reader.version == 2
    assert TensorBusWriter.validate_checkpoint_id(checkpoint_id)
    assert not TensorBusReader.validate_checkpoint_id("/tmp/somewhere")
    saved = dcp.async_save(nested(), storage_writer=TensorBusWriter(checkpoint_id), no_dist=True)
    saved.result()
    assert load(loaded, checkpoint_id) == 3


@pytest.mark.proves("G3.2")
def test_only_what_is_wanted_is_read(checkpoint_id: str):
    save({"a": torch.arange(10_000.0), "b": torch.ones(50_000)}, checkpoint_id)
    reader = TensorBusReader(checkpoint_id)
    target = {"a": torch.zeros(10_000)}
    dcp.load(target, storage_reader=reader, no_dist=True)
    assert target["a"][-1] == 9999
    assert reader.bytes_read == 40_000


def test_what_cannot_be_held_is_refused_by_name(checkpoint_id: str):
    with pytest.raises(ValueError, match=r'"options\.a" is complex'):
        save({"options": {"a": 1j}}, checkpoint_id)
    with pytest.raises(ValueError, match="at least the last version"):
        TensorBusWriter(checkpoint_id, keep=0)
    for wrong in ("/tmp/x", "tensorbus://host:1/name", "tensorbus://host:1/a/b/c"):
        with pytest.raises(ValueError, match="a checkpoint is called"):
            TensorBusReader(wrong)
    with pytest.raises(ValueError, match="name"):
        TensorBusReader().find()


@pytest.mark.parametrize(
    "forged", ["x", "[]", '{"1": {}}', '{"1": {"contents": "", "writers": 1}}']
)
def test_what_strangers_write_to_the_store_does_no_harm(checkpoint_id: str, forged: str):
    url, _, name = checkpoint_id.rpartition("/")
    with connect(url, component="checkpoint") as store:
        store.set(f"saved/{name}", forged)
    with pytest.raises(TimeoutError, match="was not saved"):
        load({"a": torch.ones(1)}, checkpoint_id, timeout=0.2)


def test_descriptions_are_never_unpickled():
    good = {
        "format": 1, "tensors": {"a": {"dtype": "float32", "size": [2], "chunks": [[[0], [2]]]}},
        "others": ["s"], "paths": {"a": ["a"]}, "writers": {"0": base64.b64encode(b"d").decode()},
        "places": [["a", [0], 0, 0]], "values": {"s": {"value": 3}},
    }  # fmt: skip
    contents = decode(json.dumps(good).encode())
    assert contents.values == {"s": 3}
    assert contents.places["a", (0,)].index == 0
    bad = [b"", b"\x80\x04.", b"[]", json.dumps(good | {"format": 2}).encode()]
    bad += [json.dumps({key: good[key] for key in good if key != left}).encode() for left in good]
    bad.append(json.dumps(good | {"tensors": {"a": {"dtype": "save", "size": []}}}).encode())
    for data in bad:
        with pytest.raises(ValueError, match="describes no checkpoint"):
            decode(data)


def test_a_saver_that_ended_is_named_although_all_of_it_is_gone(start_python: Start, checkpoint_id):
    script = """
import sys, torch, tensorbus.checkpoint
print(tensorbus.checkpoint.save({"a": torch.ones(3)}, sys.argv[1]))
"""
    process = start_python(script, checkpoint_id)
    assert process.line(60) == "1"
    assert process.wait(60) == 0
    with pytest.raises(PeerLostError, match="rank 0 is gone"):
        load({"a": torch.zeros(3)}, checkpoint_id, timeout=20.0)
