"""Calls whose other end says nothing: a store that is stopped, and an agent that is.

`blocks` are run one after the other while everything else is called on a second thread; each blocks
for `MOMENT` seconds.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import torch
from scene import SOON, Arguments, Stores, free_port, together
from tensorbus import _core

# Longer than the sleep after which a blocked call looks for Ctrl-C.
MOMENT = 0.35

SERVER = """
from tensorbus import _core
server = _core.StoreServer("127.0.0.1", 0)
print(server.url, flush=True)
server.wait_for_workers(1000000)
"""
AGENT = """
import sys
from tensorbus import _core
store = _core.connect(_core.StoreUrl.parse(sys.argv[1]), 10)
agent = _core.BusAgent(store, 7, "silent", sys.argv[2], sys.argv[3], "", 10)
print("ready", flush=True)
agent.run()
"""


class Child:
    """Killed by `close`, stopped before."""

    def __init__(self, *command: str) -> None:
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    @classmethod
    def script(cls, text: str, *arguments: str) -> Child:
        return cls(sys.executable, "-c", text, *arguments)

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGSTOP)
        os.waitpid(self.process.pid, os.WUNTRACED)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def etcd() -> tuple[Child, str]:
    client, peer = free_port(), free_port()
    child = Child(
        *("etcd", "--data-dir", tempfile.mkdtemp(), "--logger", "zap", "--log-outputs"),
        *("/dev/null", "--listen-client-urls", f"http://127.0.0.1:{client}"),
        *("--advertise-client-urls", f"http://127.0.0.1:{client}"),
        *("--listen-peer-urls", f"http://127.0.0.1:{peer}"),
        *("--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}"),
        *("--initial-cluster", f"default=http://127.0.0.1:{peer}"),
    )
    return child, f"etcd://127.0.0.1:{client}"


def server(scheme: str) -> tuple[str, Child]:
    """Its URL; it is about to be stopped."""
    if scheme == "etcd":
        child, url = etcd()
        return url, child
    child = Child.script(SERVER)
    return child.line().replace("tensorbus:", f"{scheme}:"), child


def shortly(arguments: tuple[Any, ...]) -> list[Any]:
    """With a shorter timeout."""
    return [MOMENT if each is SOON else each for each in arguments]


class SilentStore(Stores):
    """A store whose server was stopped after everything was made."""

    def __init__(self, url: str, server: Child) -> None:
        self._server = server
        self._address = _core.StoreUrl.parse(url)
        super().__init__(url)
        server.stop()

    def silent(self) -> dict[str, Arguments]:
        """Arguments; of the same calls as of a store that answers."""
        host, port = str(self._address).rpartition("//")[2].split(":")
        calls = self.calls() | {"connect": lambda: (self._address, SOON)}
        if str(self._address).startswith("etcd:"):
            del calls["Store.join"]  # there is nobody to tell
        if self.leases:
            calls["Watch.next"] = lambda: (self.watch, self.scope, SOON)
            calls["Lease.revoke"] = lambda: (self.lease, SOON)  # not one that has to be made first
        if str(self._address).startswith("tensorbus:"):
            calls["connect_tcp"] = lambda: (host, int(port), SOON)
            calls["BusClient.__init__ 1"] = lambda: (self.store, 1, "silent", "", (0, 0), SOON)
            paths = (f"{tempfile.mkdtemp()}/{each}" for each in ("queue", "state"))
            calls["BusAgent.__init__"] = lambda p=tuple(paths): (
                *(self.store, 1, "silent"),
                *p,
                "",
                SOON,
            )
        return calls

    def close(self) -> None:
        self._server.close()


class SilentAgent:
    """A daemon's client and its links; everything was made before the agent was stopped."""

    def __init__(self, url: str, folder: str) -> None:
        self._paths = f"{folder}/silent.queue", f"{folder}/silent.state"
        self._agent = Child.script(AGENT, url, *self._paths)
        assert self._agent.line() == "ready"
        self._store = _core.connect(_core.StoreUrl.parse(url), SOON)
        self.client = self._connect()
        other = _core.BusClient(self._store, 8, "silent", "", (0, 0), SOON)
        self._keep = other
        self._tensor, target = torch.ones(4), torch.zeros(4)
        self._tensors, targets = _core.Tensors([self._tensor]), _core.Tensors([target])
        self._form = _core.LinkForm(["w"], [None], [None], [None])
        link, facing = (
            self._link("a", "b"),
            _core.BusLink(other, "b", "a", 1, "off", False, None, 0),
        )
        together(
            lambda: link.send(
                link.begin("x", True, False), self._form, self._tensors, [], None, SOON, False, 0
            ),
            lambda: facing.recv(
                facing.begin("x", False, False), self._form, targets, [], None, SOON, False
            ),
        )
        self._both, self._shelf = link, self._link("p", None)
        self._closing = self._link("q", None)
        for each in (self._shelf, self._closing):
            self._publish(each, SOON)
        for client, sides in ((self.client, ("a", "b")), (other, ("b", "a"))):
            client.init_pair("pair", *sides, 1, None, [], None, False, SOON)
        tensors = [(self.client, self._tensor), (other, target)]
        self._registration, _ = together(
            *(lambda c=c, t=t: self._register(c, "batch", t) for c, t in tensors)
        )
        self._sent = self.client.transfer("batch", True, None, self._tensors, False, SOON)
        self._agent.stop()

    def _connect(self) -> Any:
        return _core.BusClient(*self._paths, "silent", 7, SOON)

    def _link(self, local: str, remote: str | None) -> Any:
        return _core.BusLink(self.client, local, remote, 1, "off", False, None, 0)

    def _publish(self, link: Any, timeout: float) -> None:
        link.publish(
            link.begin("x", True, True), self._form, self._tensors, None, 2, None, 0.0, False,
            "off", timeout,
        )  # fmt: skip

    @staticmethod
    def _register(client: Any, batch: str, tensor: torch.Tensor, timeout: float = SOON) -> Any:
        return client.register_tensors(
            batch, [tensor], [("pair", "")], [None], None, None, "off", timeout
        )

    def silent(self) -> dict[str, Callable[[], object]]:
        """Calls."""
        client, both, form, tensors = self.client, self._both, self._form, self._tensors
        return {
            "BusClient.__init__": lambda: _core.BusClient(*self._paths, "silent", 7, MOMENT),
            "BusClient.queue": lambda: client.queue(MOMENT),
            "BusClient.register_tensors": lambda: self._register(
                client, "other", self._tensor, MOMENT
            ),
            "BusTransfer.name": lambda: self._sent.name(MOMENT),
            "BusLink.newest": lambda: self._shelf.newest("x", MOMENT),
            "BusLink.versions": lambda: both.versions("x", MOMENT),
            "BusLink.publish": lambda: self._publish(self._shelf, MOMENT),
            "BusLink.recv": lambda: both.recv(
                both.begin("y", False, False), form, tensors, [], None, MOMENT, False
            ),
            "BusLink.close": lambda: self._closing.close(MOMENT),
            "BusClient.transfer": lambda: client.transfer(
                "batch", True, None, tensors, True, MOMENT
            ),
            "BusClient.close_batch": lambda: client.close_batch(
                "batch", self._registration, MOMENT
            ),
            "BusClient.close": lambda: client.close(MOMENT),
        }

    def close(self) -> None:
        self._agent.close()
