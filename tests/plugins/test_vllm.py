"""tensorbus.vllm and tensorbus.trl, driven as vLLM and TRL drive them."""

import http.server
import json
import logging
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import tensorbus
import torch
from tensorbus.errors import PeerLostError

FAKES = Path(__file__).parent / "fakes"


def weights(seed: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    return {f"model.layers.{number}.weight": torch.randn(30, 20) for number in range(7)}


class Model:
    """Loads as vLLM's models do, and writes down what happens."""

    def __init__(self):
        self.events: list[str] = []
        self.served = {name: torch.zeros(30, 20) for name in weights(0)}

    def load_weights(self, items):
        self.events.append("load")
        for name, tensor in items:
            self.served[name].copy_(tensor)

    def serves(self, seed: int) -> bool:
        return all(torch.equal(self.served[name], each) for name, each in weights(seed).items())


class Engine:
    """An engine of several workers, and the client by which a trainer calls it."""

    def __init__(self, load_plugin, workers: int = 2):
        cls = load_plugin("tensorbus.vllm.engine").TensorBusEngine
        self.models = [Model() for _ in range(workers)]
        self.workers = [cls(None, self.config(rank, workers), torch.device("cpu"), model)
                        for rank, model in enumerate(self.models)]  # fmt: skip
        self.version: str | None = None
        self._threads = ThreadPoolExecutor(workers)

    @staticmethod
    def config(rank: int, workers: int):
        parallel = SimpleNamespace(data_parallel_index=0, world_size=workers, rank=rank)
        return SimpleNamespace(parallel_config=parallel, model_config="config")

    def _all(self, call):
        list(self._threads.map(call, self.workers))

    def init_weight_transfer_engine(self, init_info):
        self._all(lambda each: each.init_transfer_engine(each.parse_init_info(init_info)))

    def start_weight_update(self):
        self._all(lambda each: each.start_weight_update())

    def update_weights(self, update_info):
        self._all(lambda each: each.update_weights(update_info))

    def finish_weight_update(self, weight_version=None):
        self._all(lambda each: each.finish_weight_update())
        self.version = weight_version

    def close(self):
        self._all(lambda each: each.shutdown())
        self._threads.shutdown()


@pytest.fixture
def engine(load_plugin):
    engine = Engine(load_plugin)
    yield engine
    engine.close()


class Source:
    """As vLLM's WeightSource."""

    def __init__(self, seed: int):
        self.seed = seed
        self.broken_after: int | None = None

    def __iter__(self):
        for number, item in enumerate(weights(self.seed).items()):
            if number == self.broken_after:
                raise ZeroDivisionError("in the middle")
            yield item


def start_trainers(load_plugin, engine: Engine, url: str, ranks: int, timeout: float = 20.0):
    plugin = load_plugin("tensorbus.vllm.trainer")
    factory = load_plugin("vllm.distributed.weight_transfer.factory").WeightTransferTrainerFactory
    load_plugin("tensorbus.vllm").register()
    return [
        factory.trainer_init(
            plugin.TensorBusTrainerInitInfo(
                store=url, world_size=ranks, bucket_bytes=5000, timeout=timeout, rank=rank
            ),
            client=engine,
            source=Source(1),
        )
        for rank in range(ranks)
    ]


def send(trainers) -> list[int]:
    with ThreadPoolExecutor(len(trainers)) as threads:
        return list(threads.map(lambda each: each.send_weights(), trainers))


@pytest.mark.proves("G1.2", "G1.3")
@pytest.mark.parametrize("ranks", [1, 2])
def test_all_workers_serve_what_the_trainer_sent(load_plugin, engine, url, ranks):
    trainers = start_trainers(load_plugin, engine, url, ranks)
    for version, seed in enumerate((1, 5), 1):
        for trainer in trainers:
            trainer.source = Source(seed)
        assert send(trainers) == [version] * ranks
        assert all(model.serves(seed) for model in engine.models)
        assert engine.version == str(version)
    assert engine.models[0].events == ["reload", "load", "finalize config"] * 2
    for trainer in trainers:
        trainer.shutdown()


@pytest.mark.proves("G1.3")
def test_a_transfer_that_fails_leaves_what_is_served_and_the_next_works(load_plugin, engine, url):
    (trainer,) = start_trainers(load_plugin, engine, url, 1)
    assert send([trainer]) == [1]
    trainer.source = Source(2)
    trainer.source.broken_after = 6
    with pytest.raises(ZeroDivisionError):
        trainer.send_weights()
    assert all(model.serves(1) for model in engine.models)
    assert engine.models[0].events == ["reload", "load", "finalize config"]
    trainer.source = Source(3)
    assert send([trainer]) == [3]
    assert all(model.serves(3) for model in engine.models)
    trainer.shutdown()


@pytest.mark.proves("G1.5")
def test_a_worker_that_is_gone_is_named_and_the_engine_can_join_again(load_plugin, engine, url):
    (trainer,) = start_trainers(load_plugin, engine, url, 1, timeout=3.0)
    send([trainer])
    engine.workers[1].shutdown()
    with pytest.raises((PeerLostError, TimeoutError), match=r"engine\.1"):
        trainer.send_weights()
    trainer.shutdown()
    (trainer,) = start_trainers(load_plugin, engine, url, 1)
    trainer.source = Source(4)
    assert send([trainer]) == [1]
    assert all(model.serves(4) for model in engine.models)
    trainer.shutdown()


def test_mistakes_are_named(load_plugin, engine, url):
    with pytest.raises(ValueError, match="Invalid init_info"):
        engine.init_weight_transfer_engine({"stroe": url})
    with pytest.raises(RuntimeError, match="comes before updates"):
        engine.update_weights({})
    plugin = load_plugin("tensorbus.vllm.trainer")
    with pytest.raises(ValueError, match="source=ModuleSource"):
        plugin.TensorBusTrainerEngine.trainer_init(
            plugin.TensorBusTrainerInitInfo(store=url, rank=0), client=engine
        )
    assert engine.workers[0].supports_draft_weight_update is False


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
    config = SimpleNamespace(model_loader_extra_config={"store": url, "timeout": 20.0})
    with (
        tensorbus.TensorBusClient.embedded(url) as client,
        client.link("trainer") as link,
    ):
        link.publish("policy", weights(8))
        for _ in range(2):  # also one that restarts
            model = Model()
            loader(config).load_weights(model, None)
            assert model.serves(8)
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
    transfer = WeightTransfer(address, url, bucket_bytes=5000, timeout=20.0)
    transfer.init_weight_transfer()
    for version, seed in enumerate((1, 6), 1):
        transfer.pause()
        transfer.send_weights(iter(weights(seed).items()))
        transfer.resume()
        assert transfer.version == version
        assert all(model.serves(seed) for model in engine.models)
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
