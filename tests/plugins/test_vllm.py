"""tensorbus.vllm and tensorbus.trl, driven as vLLM and TRL drive them."""

import http.server
import json
import logging
import re
import subprocess
import sys
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import tensorbus
import torch

FAKES = Path(__file__).parent / "fakes"


def weights(seed: int) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)  # not torch's own: ranks are threads
    return {f"layers.{number}.weight": torch.randn(30, 20, generator=random) for number in range(7)}


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(30, 20), requires_grad=False)


class Model(torch.nn.Module):
    """Loads as vLLM's models do, and writes down what happens."""

    def __init__(self):
        super().__init__()
        self.events: list[str] = []
        self.layers = torch.nn.ModuleList(Layer() for _ in range(7))
        self.broken = False

    def load_weights(self, items):
        parameters = dict(self.named_parameters())
        self.events.append("load")
        for name, tensor in items:
            if self.broken and "3" in name:
                raise ZeroDivisionError("in the middle")
            parameters[name].data.copy_(tensor)
        return parameters.keys()

    def forward(self):
        return self.layers[0].weight

    def serves(self, seed: int) -> bool:
        self()
        own = dict(self.named_parameters())
        return all(torch.equal(own[name], each) for name, each in weights(seed).items())


class Engine:
    """An engine of several workers, and the client by which a trainer calls it."""

    def __init__(self, load_plugin, workers: int = 2):
        cls = load_plugin("tensorbus.vllm.engine").TensorBusEngine
        self.models = [Model() for _ in range(workers)]
        self.config = SimpleNamespace(instance_id=uuid.uuid4().hex[:5], model_config="config")
        self.workers = [cls(None, self.config_of(rank, workers), torch.device("cpu"), model)
                        for rank, model in enumerate(self.models)]  # fmt: skip
        self.calls: list[str] = []
        self.version: str | None = None
        self._threads = ThreadPoolExecutor(workers)

    def config_of(self, rank: int, workers: int):
        parallel = SimpleNamespace(
            data_parallel_index=0, world_size=workers, rank=rank, enable_eplb=False
        )
        return SimpleNamespace(**vars(self.config), parallel_config=parallel)

    def _all(self, call):
        for each in [self._threads.submit(call, worker) for worker in self.workers]:
            each.result()

    def init_weight_transfer_engine(self, init_info):
        self.calls.append("init")
        self._all(lambda each: each.init_transfer_engine(each.parse_init_info(init_info)))

    def start_weight_update(self):
        self.calls.append("start")
        self._all(lambda each: each.start_weight_update())

    def update_weights(self, update_info):
        self.calls.append("update")
        self._all(lambda each: each.update_weights(update_info))

    def finish_weight_update(self, weight_version=None):
        self.calls.append("finish")
        self._all(lambda each: each.finish_weight_update())
        self.version = weight_version

    def serves(self, seed: int) -> bool:
        return all(model.serves(seed) for model in self.models)

    def close(self):
        self._all(lambda each: each.shutdown())
        self._threads.shutdown()


@pytest.fixture
def engine(load_plugin):
    engine = Engine(load_plugin)
    yield engine
    engine.close()


class Source:
    """As vLLM's WeightSource: every rank goes through whole tensors."""

    def __init__(self, seed: int):
        self.seed = seed

    def metadata(self):
        return [SimpleNamespace(name=name, dtype=each.dtype, shape=tuple(each.shape))
                for name, each in weights(self.seed).items()]  # fmt: skip

    def __iter__(self):
        buffer = torch.empty(30, 20)  # of which every tensor is made, as some exports do
        for name, tensor in weights(self.seed).items():
            yield name, buffer.copy_(tensor)


class Shards:
    """What one of several ranks has of each tensor."""

    def __init__(self, load_plugin, rank: int, ranks: int):
        self._source = load_plugin("tensorbus.vllm.source").TensorBusSource
        self.rank, self.ranks = rank, ranks

    def __call__(self, seed: int):
        rows = [each.tensor_split(self.ranks)[self.rank] for each in weights(seed).values()]
        first = sum(each.shape[0] for each in weights(0)["layers.0.weight"].tensor_split(
            self.ranks)[: self.rank])  # fmt: skip
        parts = [tensorbus.Part(each, (30, 20), (first, 0)) for each in rows]
        source = self._source({})
        source.tensors = lambda: dict(zip(weights(seed), parts, strict=True))
        source.metadata = Source(seed).metadata
        return source


class Trainers:
    """The ranks of a trainer."""

    def __init__(self, load_plugin, engine: Engine, url: str, make_sources, **info):
        plugin = load_plugin("tensorbus.vllm.trainer")
        factory = load_plugin("vllm.distributed.weight_transfer.factory")
        self.make_sources = make_sources
        self.ranks = [
            factory.WeightTransferTrainerFactory.trainer_init(
                plugin.TensorBusTrainerInitInfo(
                    store=url, world_size=len(make_sources), rank=rank, **{"timeout": 20.0, **info}
                ),
                client=engine,
                source=make(1),
            )
            for rank, make in enumerate(make_sources)
        ]

    def send(self, seed: int) -> list[int]:
        for rank, make in zip(self.ranks, self.make_sources, strict=True):
            rank.source = make(seed)
        with ThreadPoolExecutor(len(self.ranks)) as threads:
            return list(threads.map(lambda each: each.send_weights(), self.ranks))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for each in self.ranks:
            each.shutdown()


@pytest.mark.proves("G1.2", "G1.3")
@pytest.mark.parametrize("mode", ["staged", "direct", "auto"])
@pytest.mark.parametrize("sources", ["one", "whole", "shards"])
def test_all_workers_serve_what_the_trainer_sent(load_plugin, engine, url, mode, sources):
    make = {"one": [Source], "whole": [Source, Source],
            "shards": [Shards(load_plugin, rank, 3) for rank in range(3)]}[sources]  # fmt: skip
    with Trainers(load_plugin, engine, url, make, mode=mode) as trainers:
        for version, seed in enumerate((1, 5), 1):
            assert trainers.send(seed) == [version] * len(make)
            assert engine.serves(seed)
            assert engine.version == str(version)
    loads = ["reload", "load", "finalize config"] * 2 if mode == "staged" else ["load"]
    assert engine.models[0].events == loads, "only the dry run loads, if all is filled in place"


@pytest.mark.proves("G1.2")
def test_floating_point_is_sent_in_the_type_that_is_served(load_plugin, engine, url):
    with Trainers(load_plugin, engine, url, [Source], dtype=torch.bfloat16) as trainers:
        trainers.send(3)
    served = dict(engine.models[1].named_parameters())
    for name, each in weights(3).items():
        assert torch.equal(served[name], each.bfloat16().float())


@pytest.mark.proves("G1.3")
def test_a_staged_pull_that_fails_leaves_what_is_served_and_the_next_works(
    load_plugin, engine, url
):
    with Trainers(load_plugin, engine, url, [Source], timeout=2.0) as trainers:
        trainers.send(1)
        with pytest.raises((TimeoutError, RuntimeError)):
            engine.update_weights({"version": 9})
        assert engine.serves(1)
        assert engine.models[0].events == ["reload", "load", "finalize config"]
        assert trainers.send(3) == [2]
        assert engine.serves(3)


@pytest.mark.proves("G1.3")
def test_what_one_worker_has_not_got_no_worker_loads_and_the_last_tells(load_plugin, engine, url):
    with Trainers(load_plugin, engine, url, [Source], timeout=20.0) as trainers:
        trainers.send(1)
        first, last = engine.workers

        working = first._intake.pull

        def fail(*pulled):
            working(*pulled)
            raise ZeroDivisionError("on its way")

        first._intake.pull = fail
        with ThreadPoolExecutor(2) as threads:
            updates = [
                threads.submit(each.update_weights, {"version": 1}) for each in (first, last)
            ]
        assert updates[0].exception() is None, "vLLM takes one answer that failed, the last"
        with pytest.raises(RuntimeError, match="worker 0: ZeroDivisionError: on its way"):
            updates[1].result()
        assert all(model.events.count("load") == 1 for model in engine.models)
        first._intake.pull = working
        assert trainers.send(3) == [2]
        assert engine.serves(3)


@pytest.mark.proves("G1.3")
def test_after_a_direct_pull_that_failed_the_model_refuses_until_one_succeeds(
    load_plugin, engine, url
):
    paused = []
    engine.pause, engine.resume = lambda: paused.append(True), lambda: paused.append(False)
    with Trainers(load_plugin, engine, url, [Source], mode="direct", timeout=2.0) as trainers:
        trainers.send(1)
        assert paused == [True, False]
        working = engine.update_weights
        engine.update_weights = lambda _: working({"version": 9})
        with pytest.raises((TimeoutError, RuntimeError)):
            trainers.send(2)
        assert paused == [True, False, True], "it is not resumed"
        for model in engine.models:
            with pytest.raises(RuntimeError, match="its weights are undefined"):
                model()
        engine.update_weights = working
        assert trainers.send(3) == [3]
        assert engine.serves(3)
        assert paused == [True, False, True, True, False]


@pytest.mark.proves("G1.3")
def test_a_load_that_fails_makes_the_model_refuse_until_one_succeeds(load_plugin, engine, url):
    served = dict(engine.models[1].named_parameters())
    with Trainers(load_plugin, engine, url, [Source]) as trainers:
        engine.models[1].broken = True
        with pytest.raises(ZeroDivisionError):
            trainers.send(1)
        with pytest.raises(RuntimeError, match="its weights are undefined"):
            engine.models[1]()
        layerwise = load_plugin("vllm.model_executor.model_loader.reload.layerwise")
        infos = [layerwise.get_layerwise_info(each) for each in engine.models[1].modules()]
        assert not any(each.can_load() for each in infos), "vLLM would go on with the half"
        now = dict(engine.models[1].named_parameters())
        assert all(now[name] is each for name, each in served.items()), "what the kernels read"
        engine.models[1].broken = False
        assert trainers.send(2) == [2]
        assert engine.serves(2)


@pytest.mark.proves("G1.5")
def test_engines_come_and_go(load_plugin, engine, url):
    other = Engine(load_plugin, 1)
    with Trainers(load_plugin, engine, url, [Source], timeout=4.0) as trainers:
        (trainer,) = trainers.ranks
        trainers.send(1)
        trainer.join(other)
        assert trainers.send(2) == [2]
        assert engine.serves(2)
        assert other.serves(2)
        engine.workers[1].shutdown()
        with pytest.raises((RuntimeError, TimeoutError)):
            trainers.send(3)
        assert other.serves(3), "an engine does not suffer from another"
        assert engine.models[0].serves(2)
        assert trainers.send(4) == [4]
        assert engine.serves(4), "it joins again by itself"
        trainer.leave(other)
        trainers.send(5)
        assert other.serves(4)
    other.close()


@pytest.mark.proves("G1.5")
def test_a_trainer_that_comes_back_ends_what_it_left_open(load_plugin, engine, url):
    active = []
    start, finish = engine.start_weight_update, engine.finish_weight_update

    def start_once():
        if active:
            raise RuntimeError("a weight update is already active")
        active.append(True)
        start()

    def finish_active(version=None):
        active.clear()
        finish(version)

    engine.start_weight_update, engine.finish_weight_update = start_once, finish_active
    active.append(True)
    with Trainers(load_plugin, engine, url, [Source]) as trainers:
        trainers.send(6)
    assert engine.serves(6)
    assert engine.calls == ["init", "finish", "start", "update", "finish"]


def test_mistakes_are_named(load_plugin, engine, url):
    with pytest.raises(ValueError, match="Invalid init_info"):
        engine.init_weight_transfer_engine({"stroe": url})
    with pytest.raises(RuntimeError, match="comes before updates"):
        engine.update_weights({})
    with pytest.raises(ValueError, match="mode is staged, direct, auto, not 'fast'"):
        engine.init_weight_transfer_engine({"store": url, "mode": "fast"})
    with pytest.raises(ValueError, match="mode direct needs names"):
        engine.init_weight_transfer_engine({"store": url, "mode": "direct"})
    plugin = load_plugin("tensorbus.vllm.trainer")
    with pytest.raises(ValueError, match="TensorBusSource"):
        plugin.TensorBusTrainerEngine.trainer_init(
            plugin.TensorBusTrainerInitInfo(store=url, rank=0), client=engine
        )


@pytest.mark.proves("G1.5")
def test_what_direct_does_not_go_with_is_refused_by_name(engine, url):
    assert engine.workers[0].supports_draft_weight_update is False
    told = {"store": url, "mode": "direct", "names": ["layers.0.weight"],
            "dtype_names": ["float32"], "shapes": [[30, 20]]}  # fmt: skip
    engine.models[-1].layers[0].quant_method = SimpleNamespace()
    with pytest.raises(ValueError, match=r"layers\.0\.weight: Layer is processed by Simple"):
        engine.init_weight_transfer_engine(told)
    del engine.models[-1].layers[0].quant_method
    packed = torch.zeros(3)
    engine.models[-1].layers[0].cpu_linear = lambda x: x + packed
    with pytest.raises(ValueError, match="Layer computes with a packed copy"):
        engine.init_weight_transfer_engine(told)
    engine.workers[-1].parallel_config.enable_eplb = True
    with pytest.raises(ValueError, match="EPLB"):
        engine.init_weight_transfer_engine(told)


@pytest.mark.proves("G1.5")
def test_of_a_refusal_the_last_worker_tells_alone(engine, url):
    told = {"store": url, "mode": "direct", "names": ["layers.0.weight"],
            "dtype_names": ["float32"], "shapes": [[30, 20]], "join": "one"}  # fmt: skip
    engine.models[0].layers[0].quant_method = SimpleNamespace()
    with ThreadPoolExecutor(2) as threads:
        joins = [
            threads.submit(each.init_transfer_engine, each.parse_init_info(told))
            for each in engine.workers
        ]
    first, last = engine.workers
    assert joins[0].exception() is None, "vLLM takes one answer that failed, the last"
    with pytest.raises(RuntimeError, match=r"worker 0: ValueError: 1 of 1 .*layers\.0\.weight"):
        joins[1].result()
    first.update_weights({})
    with pytest.raises(RuntimeError, match="comes before updates"):
        last.update_weights({})
    assert first.parse_init_info({"stroe": url}) is None
    first.init_transfer_engine(None)


@pytest.mark.proves("G1.3")
def test_auto_fills_in_place_what_it_can_and_says_what_not(load_plugin, engine, url, caplog):
    for model in engine.models:
        model.layers[2].quant_method = SimpleNamespace()
    caplog.set_level("INFO", logger="tensorbus")
    with Trainers(load_plugin, engine, url, [Source], mode="auto") as trainers:
        trainers.send(4)
    assert engine.serves(4)
    assert engine.models[0].events == ["load", "reload", "load", "finalize config"]
    assert "since Layer is processed by SimpleNamespace: layers.2.weight" in caplog.text


class Packed(Layer):
    """As vLLM's linear layers on a CPU with AVX-512."""

    def process(self):
        packed = self.weight.detach().clone()
        self.cpu_linear = lambda: packed
        self.weight = torch.nn.Parameter(torch.empty(0), requires_grad=False)


@pytest.mark.proves("G1.3")
def test_layers_that_have_thrown_their_parameters_away_are_loaded_through_vllm(
    load_plugin, engine, url, caplog
):
    layerwise = load_plugin("vllm.model_executor.model_loader.reload.layerwise")
    for model in engine.models:
        model.layers[2], model.layers[5] = Packed(), Packed()
        layerwise.record_metadata_for_reloading(model)
        model.layers[2].process()
        model.layers[5].process()
    caplog.set_level("INFO", logger="tensorbus")
    why = r"Packed computes with a packed copy: layers\.2\.weight, layers\.5\.weight"
    with pytest.raises(ValueError, match=f"2 of 7 .*{why.partition(': ')[2]}: Packed computes"):
        Trainers(load_plugin, engine, url, [Source], mode="direct")
    with Trainers(load_plugin, engine, url, [Source], mode="auto") as trainers:
        for seed in (4, 6):
            trainers.send(seed)
            for model in engine.models:
                for number, layer in enumerate(model.layers):
                    now = layer.cpu_linear() if number in (2, 5) else layer.weight
                    assert torch.equal(now, weights(seed)[f"layers.{number}.weight"])
                assert [layer.weight.numel() for layer in model.layers].count(0) == 2
    assert re.search(f"since {why}", caplog.text)


def test_a_source_renames_and_leaves_out(load_plugin):
    source = load_plugin("tensorbus.vllm.source").TensorBusSource
    model = torch.nn.ModuleDict({"a": torch.nn.Linear(2, 3), "b": torch.nn.Linear(3, 1)})
    named = source(model, {"a.weight": "first"}, torch.bfloat16)
    assert list(named.tensors()) == ["first", "a.bias", "b.weight", "b.bias"]
    assert {each.dtype for each in named.metadata()} == {torch.bfloat16}
    assert {each.dtype for _, each in named} == {torch.bfloat16}
    no_bias = source(model, lambda name: None if "bias" in name else f"m.{name}")
    assert [each.name for each in no_bias.metadata()] == ["m.a.weight", "m.b.weight"]
    with pytest.raises(ValueError, match='two tensors are called "x"'):
        source(model, lambda _: "x").tensors()


@pytest.mark.proves("G1.1")
def test_registering_twice_does_no_harm(load_plugin):
    plugin = load_plugin("tensorbus.vllm")
    plugin.register()
    plugin.register()
    factory = load_plugin("vllm.distributed.weight_transfer.factory")
    engine = factory.WeightTransferEngineFactory._registry["tensorbus"]()
    assert engine.__name__ == "TensorBusEngine"
    loaders = load_plugin("vllm.model_executor.model_loader")._LOAD_FORMAT_TO_MODEL_LOADER
    assert loaders["tensorbus"].__name__ == "TensorBusModelLoader"


@pytest.mark.proves("G1.1")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("vllm.__version__ = '0.27.1'", "it knows 0.28 to 0.32, and this is 0.27.1"),
        ("vllm.__version__ = '1.0'", "and this is 1.0"),
        ("sys.modules['vllm.distributed.weight_transfer.factory'] = None", "Error"),
        ("sys.modules['vllm'] = None", "ModuleNotFoundError"),
    ],
)
def test_registering_never_raises_and_says_what_is_wrong(change, message):
    code = (
        f"import sys; sys.path.insert(0, {str(FAKES)!r})\n"
        "import vllm, logging; logging.basicConfig()\n"
        f"{change}\nimport tensorbus.vllm; tensorbus.vllm.register(); print('alive')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "alive\n", done.stderr
    assert "tensorbus is not available to vLLM" in done.stderr
    assert message in done.stderr


@pytest.mark.proves("G1.1")
@pytest.mark.parametrize(("version", "is_run"), [("0.32.1", True), ("0.28.0", False)])
def test_versions_that_no_test_has_run_are_labelled_so(
    load_plugin, monkeypatch, caplog, version, is_run
):
    monkeypatch.setattr(load_plugin("vllm"), "__version__", version)
    with caplog.at_level(logging.INFO, "tensorbus"):
        load_plugin("tensorbus.vllm").register()
    assert (f"was not tested with vLLM {version}" in caplog.text) != is_run


@pytest.mark.proves("G1.1")
def test_the_entry_point_leads_to_it():
    root = Path(__file__).resolve().parents[2]
    text = (root / "pyproject.toml").read_text()
    assert (
        '[project.entry-points."vllm.general_plugins"]\ntensorbus = "tensorbus.vllm:register"'
        in text
    )


@pytest.mark.proves("G1.4")
def test_an_engine_starts_with_what_a_trainer_has_published(load_plugin, url):
    loader = load_plugin("tensorbus.vllm.loader").TensorBusModelLoader
    config = load_plugin("vllm.config").set_current_vllm_config
    told = SimpleNamespace(model_loader_extra_config={"store": url, "timeout": 20.0})
    parallel = SimpleNamespace(data_parallel_index=0, world_size=2)
    with (
        tensorbus.TensorBusClient.embedded(url) as client,
        client.link("trainer") as link,
        ThreadPoolExecutor(2) as workers,
    ):
        for version, start in ((8, "first"), (9, "again")):
            link.publish("policy", weights(version))
            models = [Model(), Model()]
            with config(SimpleNamespace(instance_id=start, parallel_config=parallel)):
                list(workers.map(lambda each: loader(told).load_weights(each, None), models))
            assert all(model.serves(version) for model in models)
        link.publish("policy", {"layers.0.weight": torch.zeros(30, 20)})
        parallel.world_size = 1
        model = Model()
        model.load_weights = lambda items: {name for name, _ in items}
        with (
            config(SimpleNamespace(instance_id="other", parallel_config=parallel)),
            pytest.raises(ValueError, match=r"published nothing for layers\.1\.weight, .* 1 more"),
        ):
            loader(told).load_weights(model, None)
    with pytest.raises(ValueError, match="model_loader_extra_config has stroe"):
        loader(SimpleNamespace(model_loader_extra_config={"stroe": url}))


@pytest.fixture
def server(engine):
    """A vLLM server, as far as weight updates are concerned; its URL and what it was asked."""
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            said = json.loads(body) if body else {}
            route = self.path.lstrip("/")
            asked.append(route)
            try:
                code, text = self.answer(route, said), "{}"
            except Exception as error:
                code, text = 500, f"{type(error).__name__}: {error}"
            self.send_response(code)
            self.end_headers()
            self.wfile.write(text.encode())

        def answer(self, route, said):
            if route == "init_weight_transfer_engine":
                engine.init_weight_transfer_engine(said["init_info"])
            elif route == "start_weight_update":
                engine.start_weight_update()
            elif route == "update_weights":
                engine.update_weights(said["update_info"])
            elif route == "finish_weight_update":
                engine.finish_weight_update(said.get("weight_version"))
            elif route.partition("?")[0] not in ("pause", "resume"):
                return 404
            return 200

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as served:
        thread = threading.Thread(target=served.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{served.server_address[1]}", asked
        served.shutdown()
        thread.join()


@pytest.mark.proves("G2.2")
def test_trl_updates_a_server(server, engine, url):
    from tensorbus.trl import WeightTransfer

    address, asked = server
    transfer = WeightTransfer(address, url, timeout=20.0)
    transfer.init_weight_transfer()
    for version, seed in enumerate((1, 6), 1):
        transfer.pause()
        transfer.send_weights(iter(weights(seed).items()))
        transfer.resume()
        assert transfer.version == version
        assert engine.serves(seed)
    assert asked[:6] == [
        "init_weight_transfer_engine", "pause?mode=keep", "start_weight_update", "update_weights",
        "finish_weight_update", "resume",
    ]  # fmt: skip
    transfer.destroy()
    with pytest.raises(RuntimeError, match="init_weight_transfer"):
        transfer.send_weights(iter(()))


def test_a_server_that_refuses_is_named(server, url):
    from tensorbus.trl import WeightTransfer
    from tensorbus.vllm.http import HttpClient

    address, _ = server
    with pytest.raises(RuntimeError, match=r"answered 404: .*VLLM_SERVER_DEV_MODE=1"):
        HttpClient(address)._post("nonsense")
    with pytest.raises(RuntimeError, match="answered 500: ValueError: Invalid init_info"):
        HttpClient(address).init_weight_transfer_engine({"stroe": url})
    with pytest.raises(ConnectionError, match="refused"):
        WeightTransfer("http://127.0.0.1:9", url).pause()
    with pytest.raises(ValueError, match="a vLLM server is called http://host:port"):
        WeightTransfer("file:///etc/passwd", url)


def test_plugins_log_to_their_own_logger(load_plugin):
    assert load_plugin("tensorbus.vllm").logger is logging.getLogger("tensorbus")
