"""What a client says of a server that is away: once, which client, and what it means."""

import logging
import time

import pytest
from processes import Start, StartServer, eventually
from tensorbus.kvstore import connect


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "tensorbus" and record.levelno >= logging.WARNING
    ]


@pytest.mark.proves("L3.3")
def test_a_lease_that_is_not_renewed_is_told_once(
    start_server: StartServer, caplog: pytest.LogCaptureFixture
) -> None:
    server = start_server()
    with connect(server.url) as store:
        store.multi_set({"worker/7": "x", "worker/8": "x"}, lease=store.lease(0.3))
        store.set("other", "x", lease=store.lease(0.3))
        server.kill()
        eventually(lambda: warnings(caplog) != [], "a warning")
        time.sleep(1.5)  # in which it tries a dozen times more
        (warning,) = warnings(caplog)
        assert server.url in warning
        assert "worker/7" in warning or "other" in warning
        for part in ("is not renewed", "0.3 s", "new ranks cannot join", "all else goes on"):
            assert part in warning
        server.start_again()
        eventually(lambda: store.exists("worker/7"), "the lease to be published again")


@pytest.mark.proves("L3.3")
def test_who_leaves_does_not_wait_for_a_server_that_is_away(
    start_server: StartServer, caplog: pytest.LogCaptureFixture
) -> None:
    server = start_server()
    first, second = connect(server.url), connect(server.url)
    leases = [store.lease(60) for store in (first, second) for _ in range(3)]
    server.kill()
    start = time.monotonic()
    with pytest.raises(ConnectionError):
        leases[0].revoke()
    assert not leases[0].alive
    first.close()
    second.close()
    assert time.monotonic() - start < 1.5, "a revocation waited for the server"
    eventually(lambda: len(warnings(caplog)) == 2, "a warning of each")
    assert all("left to lapse" in warning for warning in warnings(caplog))


ENDS_ITS_OWN_STORE = """
import time
from tensorbus.kvstore import StoreServer, connect
with StoreServer("127.0.0.1", 0) as server:
    store = connect(server.url)
    store.set("key", "x", lease=store.lease(0.3))
time.sleep(1)  # in which it tries to renew
store.timeout = 600
try:
    store.get("key")  # of a server that does not come back by itself
except ConnectionError:
    store.close()
print("closed")
"""


AGENTS_OF_ITS_OWN_STORE = """
import threading
import torch
from tensorbus import TensorBusClient
from tensorbus.kvstore import StoreServer
with StoreServer(port=0) as store:
    trainer = TensorBusClient.embedded(store.url, rank=0).link("trainer", "engine", 1)
    engine = TensorBusClient.embedded(store.url, rank=1).link("engine", "trainer", 1)
    weights = {"weight": torch.ones(3)}
    sending = threading.Thread(target=trainer.send_state_dict, args=["policy", weights])
    sending.start()
    engine.recv_state_dict("policy", {"weight": torch.empty(3)})
    sending.join()
print("closed")
"""


@pytest.mark.proves("L3.3")
@pytest.mark.parametrize(
    "script", [ENDS_ITS_OWN_STORE, AGENTS_OF_ITS_OWN_STORE], ids=["client", "agents"]
)
def test_a_process_that_has_ended_its_own_store_says_nothing(
    start_python: Start, script: str
) -> None:
    child = start_python(script)
    assert child.line() == "closed"
    assert child.wait() == 0
    assert child.errors == ""
