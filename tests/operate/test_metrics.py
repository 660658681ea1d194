"""The page of metrics: of agents, of the store, for a real Prometheus, beside clients that hang."""

import contextlib
import gc
import json
import logging
import re
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tensorbus
from jobs import PUSH_PULL, Job, get, start_prometheus, until
from processes import PROGRAM, Start, StartServer, free_port, free_ports
from tensorbus import kvstore
from tensorbus.kvstore import StoreServer

needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None,
    reason="Debian's prometheus is not installed: tools/setup --tests does it",
)
ALERTS = Path(__file__).parents[2] / "examples" / "prometheus" / "alerts.yml"


def value(text: str, series: str) -> float:
    """Of the first series whose line begins like this."""
    for line in text.splitlines():
        if line.startswith(series):
            return float(line.rsplit(" ", 1)[1])
    raise AssertionError(f"{series} is not in {text}")


@pytest.mark.proves("O2.1")
def test_a_job_shows_what_it_has_moved(start_job: Callable[..., Job]):
    job = start_job(env={"TENSORBUS_METRICS": "127.0.0.1:0"})
    job.wait_for_version(3)
    pages = until(
        lambda: [
            found
            for found in {row["rank"]: row["metrics"] for row in job.status()["rows"]}.values()
            if found
        ],
        "the addresses of the pages",
    )
    assert len(set(pages)) == 5
    texts = [get(page) for page in pages]
    engine = next(text for text in texts if 'rank="2"' in text)
    labels = 'namespace="default",rank="2"'
    assert value(engine, f"tensorbus_version{{{labels}}}") >= 3
    assert value(engine, f'tensorbus_operations_total{{{labels},operation="pull"') >= 3
    assert value(engine, f"tensorbus_read_bytes_total{{{labels}") >= 3 * 2 * 4 * job.elements
    assert value(engine, f'tensorbus_phase_seconds_total{{{labels},operation="pull",phase="read"')
    trainer = next(text for text in texts if 'rank="0"' in text)
    assert 'operation="publish",outcome="ok"' in trainer
    assert 'phase="stage"' in trainer
    assert 'operation="registration",phase="plan"' in engine
    trainer_labels = labels.replace("2", "0")
    shelf = value(trainer, f'tensorbus_pool_bytes{{{trainer_labels},state="shelf"')
    assert shelf >= 2 * 4 * job.elements, "two versions"


def counted(series: str, **labels: str) -> float:
    """By this process, over all series that have these labels."""
    numbers = tensorbus.stats().get(series, [])
    return sum(number for has, number in numbers if has.items() >= labels.items())


@pytest.mark.proves("O1.1")
def test_peers_that_are_lost_are_counted_by_cause(start_job: Callable[..., Job]):
    job = start_job(engines=1, env={"TENSORBUS_METRICS": "127.0.0.1:0"})
    job.wait_for_version(2)
    page = until(
        lambda: next(row["metrics"] for row in job.status()["rows"] if row["rank"] == 0),
        "the address of a page",
    )
    lost = 'tensorbus_peers_lost_total{namespace="default",rank="0",cause="peer lost"}'
    assert value(get(page), lost) == 0
    job.ranks[2].signal(signal.SIGKILL)
    until(lambda: value(get(page), lost) == 1, "rank 0 to have lost rank 2")


@pytest.mark.proves("O1.1")
def test_losses_of_the_store_are_counted(start_server: StartServer):
    server = start_server()
    mine = {"namespace": "losses", "rank": "0"}
    with tensorbus.TensorBusClient.embedded(server.url, rank=0, namespace="losses"):
        assert counted("tensorbus_store_losses", **mine) == 0
        server.kill()
        until(lambda: counted("tensorbus_store_losses", **mine) == 1, "the loss to be counted")
        server.start_again()


@pytest.mark.proves("O1.1")
def test_memory_that_peers_map_is_shown_lent_and_free(store_server: StoreServer):
    mine = {"namespace": "pool", "rank": "0"}
    with tensorbus.TensorBusClient.embedded(store_server.url, rank=0, namespace="pool") as client:

        def pool(state: str) -> float:
            return counted("tensorbus_pool_bytes", state=state, **mine)

        gc.collect()  # tensors of other tests do not come back meanwhile
        before = pool("lent")
        tensor = tensorbus.empty(1_000_000, "float32")
        assert pool("lent") >= before + 4_000_000
        del tensor
        until(lambda: pool("lent") == before, "what was lent to come back")
        assert pool("free") >= 4_000_000, "it stays for the next one"
        publisher = client.link("trainer")
        publisher.publish("policy", {"w": np.ones(1_000_000, np.float32)})
        assert pool("shelf") == 2 * 4_000_000, "two versions"


def test_an_address_of_the_environment_that_is_taken_is_told_and_ignored(
    store_server: StoreServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setenv("TENSORBUS_METRICS", address)
        caplog.set_level(logging.WARNING, "tensorbus")
        with tensorbus.TensorBusClient.embedded(store_server.url, rank=0, namespace="taken") as one:
            assert one.link("trainer").publish("policy", {"w": np.ones(10, np.float32)}) == 1
        until(
            lambda: [text for text in caplog.messages if "TENSORBUS_METRICS is ignored" in text],
            "a warning",
        )
        # Who asks for it by an argument wants it.
        with pytest.raises(RuntimeError, match="cannot be listened on"):
            tensorbus.TensorBusClient.embedded(
                store_server.url, rank=0, namespace="taken", metrics=address
            )


@pytest.mark.proves("O2.1")
def test_the_log_says_which_port_was_free(
    store_server: StoreServer, unique: str, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO, "tensorbus")
    with tensorbus.TensorBusClient.embedded(
        store_server.url, rank=0, namespace=unique, metrics="127.0.0.1:0"
    ):
        pages = until(
            lambda: re.findall(r"http://127\.0\.0\.1:(\d+)/metrics", "\n".join(caplog.messages)),
            "the line",
        )
        assert len(pages) == 1
        assert pages[0] != "0"
        assert f'namespace="{unique}",rank="0"' in get(f"http://127.0.0.1:{pages[0]}/metrics")


@pytest.fixture
def page_of(request: pytest.FixtureRequest) -> Iterator[str]:
    """The text of a page of whoever the test is about, once it has something to tell."""
    whose: str = request.param
    with contextlib.ExitStack() as stack:
        yield request.getfixturevalue(f"{whose}_page")(stack)


@pytest.fixture
def agent_page(start_job: Callable[..., Job]) -> Callable[..., str]:
    def read(_: contextlib.ExitStack) -> str:
        job = start_job(env={"TENSORBUS_METRICS": "127.0.0.1:0"})
        job.wait_for_version(2)
        return get(until(lambda: job.status()["rows"][0]["metrics"], "the address of a page"))

    return read


@pytest.fixture
def store_page(start_program: Start) -> Callable[..., str]:
    def read(stack: contextlib.ExitStack) -> str:
        port = free_port()
        program = [str(PROGRAM), "store", "--port", "0", "--metrics", f"127.0.0.1:{port}"]
        url = start_program(*program).line().split()[1]
        store = stack.enter_context(kvstore.connect(url))
        store.set("key", b"value")
        assert store.get("key") == b"value"
        return get(f"http://127.0.0.1:{port}/metrics")

    return read


@pytest.fixture
def endpoint_page() -> Callable[..., str]:
    def read(stack: contextlib.ExitStack) -> str:
        port = free_port()
        giver = stack.enter_context(tensorbus.Endpoint(name="giver"))
        taker = stack.enter_context(tensorbus.Endpoint(name="taker", metrics=f"127.0.0.1:{port}"))
        taker.read(giver.expose([np.ones(1000, np.float32)]))
        return get(f"http://127.0.0.1:{port}/metrics")

    return read


@pytest.fixture
def worker_page(start_program: Start, tmp_path: Path) -> Callable[..., str]:
    def read(_: contextlib.ExitStack) -> str:
        (tmp_path / "script.py").write_text(PUSH_PULL)
        port = free_ports(2)
        job = start_program(
            str(PROGRAM), "launch", "--metrics", f"127.0.0.1:{port}",
            str(tmp_path / "script.py"), str(tmp_path / "go"), env={"TENSORBUS_LOG": "error"},
        )  # fmt: skip
        assert {job.line(120), job.line(120)} == {"[worker 0] done", "[server 0] done"}
        return get(f"http://127.0.0.1:{port + 1}/metrics")  # the server has the first port

    return read


@needs_prometheus
@pytest.mark.timeout(180)
@pytest.mark.proves("O2.1")
@pytest.mark.parametrize(
    ("page_of", "tells"),
    [
        ("agent", "tensorbus_operations_total{"),
        ("store", "tensorbus_store_requests"),
        ("endpoint", 'operation="read"'),
        ("worker", 'side="worker"'),
    ],
    indirect=["page_of"],
)
def test_promtool_finds_nothing_wrong(page_of: str, tells: str):
    assert tells in page_of
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=page_of, capture_output=True, text=True
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


@needs_prometheus
@pytest.mark.proves("O2.1")
def test_promtool_finds_nothing_wrong_with_the_rules():
    rules = subprocess.run(
        ["promtool", "check", "rules", str(ALERTS)], capture_output=True, text=True
    )
    assert rules.returncode == 0, rules.stderr


@needs_prometheus
@pytest.mark.proves("O2.1")
def test_the_first_pull_of_a_rank_that_fails_raises_the_alarm(
    store_server: StoreServer, unique: str, tmp_path: Path
):
    """A scrape while it pulls, and those after that, as Prometheus has them."""
    port = free_port()
    with (
        tensorbus.TensorBusClient.embedded(store_server.url, rank=0, namespace=unique) as trainer,
        tensorbus.TensorBusClient.embedded(
            store_server.url, rank=1, namespace=unique, metrics=f"127.0.0.1:{port}"
        ) as engine,
        ThreadPoolExecutor(1) as pool,
    ):
        state = {"w": np.ones(10, np.float32)}
        publisher = trainer.link("trainer")  # one that is let go of ends what it publishes
        publisher.publish("policy", state)
        link = engine.link("engine", "trainer")
        ends = pool.submit(link.pull, "policy", state, newer_than=1, timeout=5)

        def scrape() -> dict[str, str]:
            lines = get(f"http://127.0.0.1:{port}/metrics").splitlines()
            pulls = [line for line in lines if 'rank="1",operation="pull",outcome=' in line]
            return dict(line.rsplit(" ", 1) for line in pulls)

        before = until(scrape, "the pull to have begun")
        assert not ends.done()
        assert ends.exception(30) is not None
        after = scrape()
    assert set(before.values()) == {"0"}
    failed = [series for series in after if after[series] == "1"]
    assert len(failed) == 1
    assert 'outcome="timeout"' in failed[0]
    alarm = {
        "exp_labels": {"severity": "warning", "namespace": unique, "rank": "1"},
        "exp_annotations": {
            "summary": "Rank 1 cannot read what it asks for",
            "description": "tensorbus status says whom it waits for.",
        },
    }
    tests = {
        "rule_files": [str(ALERTS)],
        "tests": [
            {
                "interval": "1m",
                "input_series": [
                    {"series": series, "values": f"{before.get(series, '_')}x3 {after[series]}x20"}
                    for series in after
                ],
                "alert_rule_test": [
                    {"eval_time": "3m", "alertname": "TensorbusPullsFail", "exp_alerts": []},
                    {"eval_time": "6m", "alertname": "TensorbusPullsFail", "exp_alerts": [alarm]},
                    {"eval_time": "20m", "alertname": "TensorbusPullsFail", "exp_alerts": []},
                ],
            }
        ],
    }
    (tmp_path / "alerts_test.yml").write_text(json.dumps(tests))
    checked = subprocess.run(
        ["promtool", "test", "rules", str(tmp_path / "alerts_test.yml")],
        capture_output=True, text=True,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stdout + checked.stderr


@needs_prometheus
def test_the_example_configuration_is_one():
    example = ALERTS.with_name("prometheus.yml")
    checked = subprocess.run(
        ["promtool", "check", "config", str(example)], capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


@needs_prometheus
@pytest.mark.proves("O2.1")
def test_a_real_prometheus_scrapes_a_job(
    start_job: Callable[..., Job], start_program: Start, tmp_path: Path
):
    job = start_job(engines=1, env={"TENSORBUS_METRICS": "127.0.0.1:0"})
    job.wait_for_version(2)
    pages = until(
        lambda: (found := sorted({row["metrics"] for row in job.status()["rows"]}))[0] and found,
        "the addresses of the pages",
    )
    prometheus = start_prometheus(start_program, pages, tmp_path, ALERTS)

    def ask() -> dict[str, float]:
        query = urllib.parse.quote("sum by (operation) (tensorbus_operations_total)")
        try:
            answer = json.loads(get(f"{prometheus}/api/v1/query?query={query}"))
        except OSError:
            return {}
        results = answer["data"]["result"]
        return {each["metric"]["operation"]: float(each["value"][1]) for each in results}

    found = until(
        lambda: (counts := ask()).keys() >= {"publish", "pull"} and counts,
        "Prometheus to have scraped the job",
        120,
    )
    assert found["publish"] >= 4  # of two ranks
    assert found["pull"] >= 2


@pytest.mark.proves("O2.1")
def test_the_store_and_an_agent_of_its_own_have_pages(start_program: Start, tmp_path: Path):
    port = free_port()
    store = start_program(str(PROGRAM), "store", "--port", "0", "--metrics", f"127.0.0.1:{port}")
    url = store.line().split()[1]
    assert value(get(f"http://127.0.0.1:{port}/metrics"), "tensorbus_store_connections ") == 0
    agent_port = free_port()
    agent = start_program(
        str(PROGRAM), "agent", "--store", url, "--rank", "0", "--world-size", "1",
        "--command-queue", str(tmp_path / "queue"), "--state", str(tmp_path / "state"),
        "--metrics", f"127.0.0.1:{agent_port}",
    )  # fmt: skip
    assert agent.line().startswith("ready rank 0")
    text = get(f"http://127.0.0.1:{agent_port}/metrics")
    assert value(text, 'tensorbus_commands{namespace="default",rank="0"}') == 0
    assert text.startswith("# HELP")
    openmetrics = get(
        f"http://127.0.0.1:{agent_port}/metrics", "application/openmetrics-text; version=1.0.0"
    )
    assert openmetrics.endswith("# EOF\n")
    assert value(get(f"http://127.0.0.1:{port}/metrics"), "tensorbus_store_connections ") >= 1
    second = start_program(str(PROGRAM), "store", "--port", "0", "--metrics", f"127.0.0.1:{port}")
    assert second.wait() == 1
    assert "cannot be listened on" in second.errors


@pytest.mark.proves("O5.1")
def test_clients_that_never_read_delay_no_step(store_server: StoreServer):
    port = free_port()
    space = "silent-scrapers"
    trainer = tensorbus.TensorBusClient.embedded(
        store_server.url, rank=0, namespace=space, metrics=f"127.0.0.1:{port}"
    )
    engine = tensorbus.TensorBusClient.embedded(store_server.url, rank=1, namespace=space)
    state = {"w": np.ones(1000, np.float32)}
    publisher, puller = trainer.link("trainer"), engine.link("engine", "trainer")
    last = publisher.publish("policy", state)
    puller.pull("policy", state)
    silent = []
    for number in range(12):
        connection = socket.create_connection(("127.0.0.1", port))
        silent.append(connection)
        if number % 2:
            connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
    longest = 0.0
    for _ in range(50):
        begin = time.monotonic()
        publisher.publish("policy", state)
        last = puller.pull("policy", state, newer_than=last)
        longest = max(longest, time.monotonic() - begin)
    # The page waits a second for each of its clients; a loaded machine takes a part of that.
    assert longest < 0.9
    for connection in silent:
        connection.close()
    engine.close()
    trainer.close()


@pytest.mark.proves("O2.2")
def test_stats_are_the_numbers_of_the_page(store_server: StoreServer):
    port = free_port()
    with tensorbus.TensorBusClient.embedded(
        store_server.url, rank=7, namespace="stats", metrics=f"127.0.0.1:{port}"
    ) as client:
        client.link("trainer").publish("policy", {"w": np.ones(1000, np.float32)})
        mine = {"namespace": "stats", "rank": "7"}
        found = {
            labels["operation"]: number
            for labels, number in tensorbus.stats()["tensorbus_operation_bytes"]
            if labels.items() >= mine.items()
        }
        assert found["publish"] == 4000
        page = get(f"http://127.0.0.1:{port}/metrics")
        labels = 'namespace="stats",rank="7",operation="publish"'
        assert value(page, f"tensorbus_operation_bytes_total{{{labels}}}") == 4000


@pytest.mark.proves("O2.2")
def test_a_link_has_the_numbers_of_its_rank(store_server: StoreServer):
    with (
        tensorbus.TensorBusClient.embedded(store_server.url, rank=1, namespace="mine") as client,
        tensorbus.TensorBusClient.embedded(store_server.url, rank=2, namespace="mine") as other,
    ):
        link = client.link("trainer")
        link.publish("policy", {"w": np.ones(1000, np.float32)})
        other.link("second").publish("policy", {"w": np.ones(7, np.float32)})
        assert ({"operation": "publish"}, 4000) in link.stats()["tensorbus_operation_bytes"]
        assert len(link.stats()["tensorbus_version"]) == 1


@pytest.mark.proves("O1.1", "O2.1")
def test_an_endpoint_has_a_page():
    port = free_port()
    with (
        tensorbus.Endpoint(name="giver") as giver,
        tensorbus.Endpoint(name="taker", metrics=f"127.0.0.1:{port}") as taker,
    ):
        (got,) = taker.read(giver.expose([np.full(1000, 3, np.float32)]))
        assert (np.asarray(got) == 3).all()
        lines = get(f"http://127.0.0.1:{port}/metrics").splitlines()
    of_taker = [line for line in lines if 'endpoint="taker ' in line]
    read = next(line for line in of_taker if line.startswith("tensorbus_operation_bytes_total"))
    assert 'operation="read"' in read
    assert read.endswith(" 4000")
    assert any(line.startswith("tensorbus_read_bytes_total") for line in of_taker)


def test_a_page_is_not_for_names_that_others_chose(store_server: StoreServer):
    port = free_port()
    with tensorbus.TensorBusClient.embedded(
        store_server.url, rank=0, namespace="rebinding", metrics=f"127.0.0.1:{port}"
    ):
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/metrics", headers={"Host": f"evil.example:{port}"}
        )
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(request, timeout=30)


def test_an_address_that_is_none_is_refused(store_server: StoreServer):
    with pytest.raises(ValueError, match="HOST:PORT"):
        tensorbus.TensorBusClient.embedded(
            store_server.url, rank=0, namespace="no-address", metrics="9400"
        )
