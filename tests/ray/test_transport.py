"""What users do with the transport, on a real cluster."""

import gc
import pickle

import pytest
import ray
import tensorbus
import tensorbus.ray
import torch
from actors import describe
from processes import eventually
from ray.experimental.rdt.tensor_transport_manager import FetchRequest, TensorTransportMetadata
from ray_cluster import elsewhere, metadata
from tensorbus.kvstore import StoreServer

pytestmark = [
    pytest.mark.timeout(120),
    # Ray's own thread that watches transfers may meet the next cluster.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
]

TYPES = """
    float64 float32 float16 bfloat16 float8_e4m3fn float8_e5m2 int8 int16 int32 int64 uint8 bool
    complex64 complex128 uint16 uint32 uint64
""".split()  # noqa: SIM905  a list of twenty lines says no more


def reads(worker, path):
    return ray.get(worker.stats.remote())["paths"].get(path, {"reads": 0})["reads"]


@pytest.mark.proves("R1", "R10")
def test_from_actor_to_actor_and_driver(source, sink):
    ref = source.make.remote("torch.arange(1000.)")
    assert ray.get(sink.sums.remote(ref)) == [499500.0]
    assert torch.equal(ray.get(ref), torch.arange(1000.0))
    assert reads(sink, "network" if elsewhere() else "process_vm_readv") >= 1


@pytest.mark.proves("R10")
def test_pooled_sources_are_mapped(source, sink):
    ref = source.make.remote("tensorbus.share_(torch.arange(1000.))")
    assert ray.get(sink.sums.remote(ref)) == [499500.0]
    assert reads(sink, "network" if elsewhere() else "mapped") >= 1


@pytest.mark.proves("R1")
@pytest.mark.usefixtures("cluster")
def test_what_the_driver_puts(sink):
    value = {"weights": [torch.arange(5.0), torch.ones(2, 3)], "step": 7}
    ref = ray.put(value, _tensor_transport="TENSORBUS")
    assert ray.get(sink.describe.remote(ref)) == describe(value)
    assert ray.get(ref)["step"] == 7


@pytest.mark.proves("R1")
def test_every_kind_of_value(source, sink):
    what = (
        f"{{'types': [torch.arange(4).to(getattr(torch, name)) for name in {TYPES}], "
        "'views': [torch.arange(24).reshape(4, 6).t()[::2], torch.arange(24.)[3:9], "
        "torch.ones(1).expand(3)], "
        "'parameter': torch.nn.Parameter(torch.ones(2)), 'scalar': torch.tensor(3), "
        "'empty': torch.ones(0, 5), 'twice': [torch.arange(3)] * 2, 'text': 'x', 'none': None}"
    )
    assert ray.get(sink.describe.remote(source.make.remote(what))) == describe(eval(what))
    nothing = source.make.remote("{'no': 'tensors'}")
    assert ray.get(sink.describe.remote(nothing)) == {"no": "tensors"}


@pytest.mark.proves("R1")
def test_chains_and_nested_refs(source, sink, other_sink):
    ref = source.make.remote("[torch.full((10,), 2.0), torch.arange(3)]")
    again = sink.echo.remote(ref)
    assert metadata(ref)
    assert metadata(again)
    assert ray.get(other_sink.sums.remote(again)) == [20.0, 3.0]
    assert ray.get(sink.get.remote([ref])) == ray.get(other_sink.get.remote([again]))


@pytest.mark.proves("R1")
def test_one_ref_many_readers(source, sink, other_sink):
    ref = source.make.remote("torch.ones(100_000)")
    sums = [worker.sums.remote(ref) for worker in (sink, other_sink) * 4]
    assert ray.get(sums) == [[100_000.0]] * 8


@pytest.mark.proves("R4")
def test_one_get_of_many_refs(source, sink):
    refs = [source.make.remote(f"torch.full((1000,), {number}.)") for number in range(8)]
    assert all(metadata(ref) for ref in refs)
    assert ray.get(sink.get_all.remote(refs)) == [1000.0 * number for number in range(8)]


@pytest.mark.proves("R1")
def test_many_tensors_in_one_ref(source, sink):
    ref = source.make.remote("[torch.full((64,), float(i)) for i in range(1000)]")
    assert ray.get(sink.sums.remote(ref)) == [64.0 * i for i in range(1000)]


@pytest.mark.proves("R3")
def test_targets_are_filled_in_place(source, sink):
    refs = ray.get(source.put.remote("[torch.arange(1000.), torch.ones(3, 4)]"))
    same, held = ray.get(sink.get_into.remote(refs, "[torch.zeros(1000), torch.zeros(3, 4)]"))
    assert same
    assert held == describe([torch.arange(1000.0), torch.ones(3, 4)])
    for bad in ("[torch.zeros(1000)]", "[torch.zeros(999), torch.zeros(3, 4)]"):
        with pytest.raises(ValueError, match=r"(?i)target|buffer"):
            ray.get(sink.get_into.remote(refs, bad))
    with pytest.raises(ValueError, match=r"(?i)dtype|target"):
        ray.get(sink.get_into.remote(refs, "[torch.zeros(1000).double(), torch.zeros(3, 4)]"))


@pytest.mark.proves("R2")
def test_a_later_write_of_the_source_never_shows(source, sink):
    for what in ("tensorbus.share_(torch.ones(1000))", "torch.ones(1000)"):
        ref = source.make.remote(what)
        ray.get(sink.keep.remote(ref))
        ray.get(source.overwrite.remote(5.0))
        assert ray.get(sink.kept_sums.remote()) == [1000.0]


@pytest.mark.proves("R7")
def test_memory_returns_to_the_pool(source, sink):
    ref = source.make.remote("tensorbus.empty(10_000_000).fill_(1)")
    ray.get(sink.keep.remote(ref))
    assert ray.get(source.stats.remote())["pool"]["lent"] >= 40_000_000
    assert ray.get(sink.stats.remote())["pool"]["lent"] >= 40_000_000
    exposures = ray.get(source.stats.remote())["exposures"]
    del ref
    gc.collect()
    ray.get([source.drop.remote(), sink.drop.remote()])

    def returned():
        theirs, mine = ray.get([source.stats.remote(), sink.stats.remote()])
        return (
            theirs["exposures"] < exposures
            and theirs["pool"]["lent"] < 40_000_000
            and mine["pool"]["lent"] < 40_000_000
        )

    eventually(returned, "the memory to come back")


@pytest.mark.proves("R7")
@pytest.mark.usefixtures("cluster")
def test_what_the_driver_put_is_collected(sink):
    ref = ray.put(torch.ones(1000), _tensor_transport="TENSORBUS")
    ray.get(sink.sums.remote(ref))
    exposures = tensorbus.ray.stats()["exposures"]
    del ref
    eventually(lambda: tensorbus.ray.stats()["exposures"] < exposures, "the ref to be collected")


@pytest.mark.proves("R8")
def test_frozen_tensors_are_aliased(source, sink, other_sink):
    value = "{'a': torch.ones(5_000_000), 'b': torch.arange(3), 'c': torch.ones(2, 9).t()[1:]}"
    before = ray.get(sink.stats.remote())["pool"]["lent"]
    refs = ray.get(source.put_frozen.remote(value))
    aliased = {worker: reads(worker, "alias") for worker in (sink, other_sink)}
    for worker in (sink, other_sink):
        ray.get(worker.keep.remote(refs[0]))
        assert ray.get(worker.kept_sums.remote()) == [5_000_000.0, 3.0, 16.0]
        if not elsewhere():
            assert reads(worker, "alias") == aliased[worker] + 1
    if not elsewhere():
        assert ray.get(sink.stats.remote())["pool"]["lent"] < before + 20_000_000
    # What one writes is its own.
    ray.get(sink.overwrite.remote(2.0))
    assert ray.get(sink.kept_sums.remote()) == [10_000_000.0, 6.0, 32.0]
    assert ray.get(other_sink.kept_sums.remote()) == [5_000_000.0, 3.0, 16.0]
    if elsewhere():
        return
    # Freed at the source only when the last alias is gone.
    held = ray.get(source.stats.remote())
    assert held["pool"]["lent"] >= 20_000_000
    del refs
    gc.collect()
    ray.get(sink.drop.remote())
    eventually(
        lambda: ray.get(source.stats.remote())["exposures"] < held["exposures"],
        "the ref to be collected",
    )
    assert ray.get(source.stats.remote())["pool"]["lent"] >= 20_000_000
    ray.get(source.make.remote("tensorbus.empty(5_000_000).fill_(7)"))
    assert ray.get(other_sink.kept_sums.remote()) == [5_000_000.0, 3.0, 16.0]
    ray.get([other_sink.drop.remote(), source.drop.remote()])
    eventually(
        lambda: ray.get(source.stats.remote())["pool"]["lent"] < 20_000_000,
        "the block to come back to the pool",
    )


@pytest.mark.proves("R8")
def test_frozen_tensors_fill_targets_too(source, sink):
    refs = ray.get(source.put_frozen.remote("[torch.arange(1000.)]"))
    same, held = ray.get(sink.get_into.remote(refs, "[torch.zeros(1000)]"))
    assert same
    assert held == describe([torch.arange(1000.0)])


@pytest.mark.long
@pytest.mark.proves("R1", "R3")
def test_two_gibibytes(source, sink):
    ref = source.make.remote("tensorbus.empty(2 << 30, torch.int8).fill_(1)")
    assert metadata(ref)
    target = "[tensorbus.empty(2 << 30, torch.int8)]"
    same, held = ray.get(sink.get_into.remote([ref], target))
    assert same
    assert held == describe([torch.ones(2 << 30, dtype=torch.int8)])
    ray.get(source.drop.remote())


@pytest.mark.proves("R9")
def test_an_actor_that_only_puts_knows_the_transport_from_the_hook(start_worker, sink):
    refs = ray.get(start_worker("there", "Plain").put.remote("torch.ones(3)"))
    assert ray.get(sink.get.remote(refs)) == describe(torch.ones(3))


@pytest.mark.proves("R9")
def test_numpy_is_asked_for(start_worker):
    with pytest.raises(ValueError, match="TENSORBUS_NUMPY"):
        ray.put(torch.ones(3).numpy(), _tensor_transport="TENSORBUS_NUMPY")
    tensorbus.ray.register(numpy=True)
    value = {"a": torch.arange(6.0).reshape(2, 3).numpy().T, "b": [torch.zeros(0).numpy()]}
    ref = ray.put(value, _tensor_transport="TENSORBUS_NUMPY")
    worker = start_worker("there", "Plain")
    assert ray.get(worker.describe.remote(ref)) == describe(value)
    refs = ray.get(worker.put.remote("[np.arange(5), np.ones((2, 2))]", "TENSORBUS_NUMPY"))
    assert [array.tolist() for array in ray.get(refs[0])] == [[0, 1, 2, 3, 4], [[1, 1], [1, 1]]]


@pytest.mark.proves("R13")
def test_actors_get_agents_and_lose_them(source, sink, other_sink):
    with tensorbus.ray.agents([source, sink]):
        assert ray.get([source.agent_rank.remote(), sink.agent_rank.remote()]) == [0, 1]
        with pytest.raises(RuntimeError, match="has an agent already"):
            tensorbus.ray.agents([other_sink, sink])
        # Whoever joined the group that failed has left it; the others are where they were.
        assert ray.get(sink.agent_rank.remote()) == 1
        with pytest.raises(RuntimeError, match="has no agent"):
            ray.get(other_sink.agent_rank.remote())
    with pytest.raises(RuntimeError, match="has no agent"):
        ray.get(sink.agent_rank.remote())
    with StoreServer(port=0) as server, tensorbus.ray.agents([sink], store=server.url):
        assert ray.get(sink.agent_rank.remote()) == 0


@pytest.mark.proves("R13")
def test_the_bus_moves_a_tensor_between_actors(source, sink):
    with tensorbus.ray.agents([source, sink]):
        joining = [
            source.join_bus.remote("from", "to", [1.0, 2.0, 3.0]),
            sink.join_bus.remote("to", "from", [0.0, 0.0, 0.0]),
        ]
        ray.get(joining)
        sending = source.transfer.remote("send")
        assert ray.get(sink.transfer.remote("recv")) == [1.0, 2.0, 3.0]
        ray.get(sending)


@pytest.mark.proves("R13")
def test_agents_for_whoever_cannot_have_one(source, sink):
    with pytest.raises(TypeError, match="rank 1 is 5, not an actor"):
        tensorbus.ray.agents([sink, 5])
    with pytest.raises(ValueError, match="rank 2 is the actor of rank 0"):
        tensorbus.ray.agents([sink, source, sink])
    with pytest.raises(ValueError, match="it has no scheme"):
        tensorbus.ray.agents([sink], store="nonsense")
    with tensorbus.ray.agents([sink]):
        assert ray.get(sink.agent_rank.remote()) == 0


@pytest.mark.proves("R9")
@pytest.mark.usefixtures("cluster")
def test_registering_twice_and_the_hook_do_no_harm():
    tensorbus.ray.register()
    tensorbus.ray.setup_hook()


@pytest.mark.proves("R3", "R11")
@pytest.mark.usefixtures("cluster")
def test_the_contract_with_ray():
    transport = tensorbus.ray.TensorBusTransport()
    assert transport.tensor_transport_backend() == "TENSORBUS"
    assert tensorbus.ray.TensorBusTransport.is_one_sided()
    assert tensorbus.ray.TensorBusTransport.can_abort_transport()
    assert transport.actor_has_tensor_transport(None)
    meta = transport.extract_tensor_transport_metadata("direct", [torch.arange(3.0)])
    assert meta.tensor_meta == [(torch.Size([3]), torch.float32)]
    assert meta.tensor_device == "cpu"
    assert len(pickle.dumps(meta)) < 2000
    assert transport.extract_tensor_transport_metadata("direct", [torch.arange(3.0)]) == meta
    for bad in ([], [torch.zeros(4)], [torch.zeros(3).int()]):
        with pytest.raises(ValueError, match="target"):
            transport.recv_multiple_tensors("direct", meta, None, bad)
        assert all(not tensor.any() for tensor in bad)
    strided = torch.zeros(3, 2)[:, 0]
    assert transport.recv_multiple_tensors("direct", meta, None, [strided])[0] is strided
    assert strided.tolist() == [0, 1, 2]
    transport.garbage_collect("direct", meta, [])
    transport.garbage_collect("direct", meta, [])
    eventually(lambda: not readable(transport, meta), "the tensors to be taken back")
    assert transport.extract_tensor_transport_metadata("none", []).tensor_meta == []
    with pytest.raises(NotImplementedError):
        transport.send_multiple_tensors([], meta, None)
    with pytest.raises(ValueError, match=r"tensor 0 is torch\.sparse_coo; pass to_dense"):
        transport.extract_tensor_transport_metadata("sparse", [torch.eye(2).to_sparse()])
    with pytest.raises(TypeError, match=r"TENSORBUS .*TENSORBUS_NUMPY .*not builtins\.str"):
        transport.extract_tensor_transport_metadata("jax", ["like a jax array"])
    with pytest.raises(ValueError, match="tensor 1 is on meta"):
        transport.extract_tensor_transport_metadata(
            "mixed", [torch.zeros(1), torch.zeros(1, device="meta")]
        )


@pytest.mark.proves("B6.7")
def test_what_another_transport_made_is_named():
    """As when the two sides register different transports under one name."""
    transport = tensorbus.ray.TensorBusTransport()
    foreign = TensorTransportMetadata(tensor_meta=[], tensor_device="cpu")
    with pytest.raises(
        ray.exceptions.RayDirectTransportError,
        match=r"object of-theirs .*TENSORBUS was given metadata of another transport "
        r"\(ray\..*\.TensorTransportMetadata\).*must use TENSORBUS too",
    ):
        transport.recv_multiple_tensors("of-theirs", foreign, None)
    with pytest.raises(ray.exceptions.RayDirectTransportError, match="given a fetch of another"):
        transport.wait_fetch_complete(FetchRequest(obj_id="of-theirs", tensors=[]))


def readable(transport, meta):
    try:
        return bool(transport.recv_multiple_tensors("direct", meta, None))
    except ray.exceptions.RayDirectTransportError:
        return False


def test_what_is_on_a_device_is_described_so(monkeypatch: pytest.MonkeyPatch):
    """Without a GPU: torch's fake tensors have a device, and no memory."""
    from tensorbus.ray import transport as module
    from torch._subclasses.fake_tensor import FakeTensorMode

    exposed = []

    class Process:
        def expose(self, obj_id, tensors, frozen):
            exposed.append((obj_id, len(tensors), frozen))
            return b"descriptor"

        def start_read(self, *arguments):
            return arguments[-1]

    monkeypatch.setattr(module, "process", Process)
    transport = tensorbus.ray.TensorBusTransport()
    with FakeTensorMode():
        on_device = [torch.empty(3, 4, device="cuda"), torch.empty(2, device="cuda:1")]
    meta = transport.extract_tensor_transport_metadata("x", on_device)
    assert meta.tensor_device == "cuda"
    assert meta.tensor_meta == [
        (torch.Size([3, 4]), torch.float32),
        (torch.Size([2]), torch.float32),
    ]
    assert exposed == [("x", 2, False)]
    with pytest.raises(ValueError, match="tensor 1 is on cpu, tensor 0 on cuda:0"):
        transport.extract_tensor_transport_metadata("y", [on_device[0], torch.zeros(1)])
    frozen = module._freezing.set(True)
    with pytest.raises(ValueError, match="put_frozen is for tensors in CPU memory"):
        transport.extract_tensor_transport_metadata("z", on_device)
    module._freezing.reset(frozen)
    assert transport.fetch_multiple_tensors("x", meta, None).read is None  # here is no GPU
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert transport.fetch_multiple_tensors("x", meta, None).read == "cuda"
    assert transport.fetch_multiple_tensors("x", meta, None, on_device).read is None
