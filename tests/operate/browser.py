"""A real browser: Chromium without a window, driven over WebDriver, which is HTTP and JSON."""

from __future__ import annotations

import base64
import json
import os
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from processes import Process, free_port

needs_browser = pytest.mark.skipif(
    shutil.which("chromium") is None or shutil.which("chromedriver") is None,
    reason="Debian's chromium and chromium-driver are not installed: tools/setup --tests does it",
)


# As WebDriver calls them.
TAB = "\ue004"
ENTER = "\ue007"


class Browser:
    """One page. Everything that it asks for and everything in its console is kept.

    A browser that is ended in haste leaves temporary files: they go to `temporary`, which must be
    short (a socket's path of at most 108 bytes ends there).
    """

    def __init__(
        self, start: Callable[..., Process], profile: Path, temporary: str, dark: bool = False
    ) -> None:
        port = free_port()
        home = {"HOME": str(profile), "TMPDIR": temporary}
        start("chromedriver", f"--port={port}", env=home)
        self._driver = f"http://127.0.0.1:{port}"
        arguments = [
            "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
            "--window-size=1440,1440", "--hide-scrollbars", "--no-first-run",
            "--disable-background-networking", "--disable-component-update",
            f"--user-data-dir={profile / 'chromium'}",
            *(["--force-dark-mode"] if dark else []),
        ]  # fmt: skip
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": {"args": arguments, "binary": shutil.which("chromium")},
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }
        made = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}}, patience=60)
        self._session = f"/session/{made['sessionId']}"

    def _ask(self, method: str, path: str, body: Any = None, patience: float = 0) -> Any:
        end = time.monotonic() + patience
        while True:
            request = urllib.request.Request(
                self._driver + path, method=method, data=json.dumps(body or {}).encode()
                if method == "POST" else None,
                headers={"Content-Type": "application/json"},
            )  # fmt: skip
            try:
                with urllib.request.urlopen(request, timeout=120) as answer:
                    return json.loads(answer.read())["value"]
            except urllib.error.HTTPError as error:
                raise AssertionError(error.read().decode()) from None
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.1)

    def open(self, url: str) -> None:
        self._ask("POST", self._session + "/url", {"url": url})

    def run(self, script: str, *arguments: Any) -> Any:
        """What the body of this function returns."""
        return self._ask(
            "POST", self._session + "/execute/sync", {"script": script, "args": list(arguments)}
        )

    def press(self, *keys: str) -> None:
        """Of a keyboard: whoever has the focus gets them."""
        moves = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        board = {"type": "key", "id": "keyboard", "actions": moves}
        self._ask("POST", self._session + "/actions", {"actions": [board]})

    def emulate(self, scheme: str) -> None:
        """As a system that is ``light`` or ``dark``, where nothing moves slowly: what is looked at
        is not half of the one and half of the other."""
        features = [
            {"name": "prefers-color-scheme", "value": scheme},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        self._ask(
            "POST", self._session + "/goog/cdp/execute",
            {"cmd": "Emulation.setEmulatedMedia", "params": {"features": features}},
        )  # fmt: skip

    def picture(self, path: Path) -> None:
        shot = self._ask("GET", self._session + "/screenshot")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(shot))

    def _log(self, kind: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._ask("POST", self._session + "/se/log", {"type": kind})
        return found

    def console(self) -> list[str]:
        """Warnings and errors since the last call."""
        return [each["message"] for each in self._log("browser") if each["level"] != "INFO"]

    def requests(self) -> set[str]:
        """Addresses that were asked for since the last call."""
        events = [json.loads(each["message"])["message"] for each in self._log("performance")]
        return {
            event["params"]["request"]["url"]
            for event in events
            if event["method"] == "Network.requestWillBeSent"
        }

    def close(self) -> None:
        self._ask("DELETE", self._session)
        end = time.monotonic() + 30
        while _adopted() and time.monotonic() < end:
            for pid in _adopted():
                os.waitpid(pid, os.WNOHANG)
            time.sleep(0.02)


def _adopted() -> list[int]:
    """Processes of Chromium, which leaves them to whoever takes orphans: to this process if it is
    the first of its namespace."""
    tasks = Path("/proc/self/task").glob("*/children")
    pids = [int(pid) for task in tasks for pid in task.read_text().split()]
    names = {pid: Path(f"/proc/{pid}/comm").read_text().strip() for pid in pids}
    return [pid for pid, name in names.items() if name in {"chromium", "chrome_crashpad"}]
