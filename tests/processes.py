"""Child processes of tests: scripts, servers, etcd. Who starts one kills it by its process id."""

import contextlib
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path


class Process:
    """A child process whose lines of output can be waited for. Killed by `kill`, always."""

    def __init__(self, command: list[str], env: dict[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | (env or {}),
        )
        self.pid = self._process.pid
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._errors: list[str] = []
        self._readers = [
            threading.Thread(target=self._read_lines, daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def _read_lines(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        self._errors.extend(self._process.stderr)

    @property
    def errors(self) -> str:
        """What it wrote to stderr so far; all of it once it has ended."""
        return "".join(self._errors)

    def line(self, timeout: float = 30.0) -> str:
        """Its next line of output."""
        try:
            line = self._lines.get(timeout=timeout)
        except queue.Empty:
            raise AssertionError(f"no line in {timeout} s; stderr: {self.errors}") from None
        assert line is not None, f"the child ended without another line; stderr: {self.errors}"
        return line

    def has_line(self, timeout: float) -> bool:
        """Whether there is a line within this time; `line` returns it."""
        end = time.monotonic() + timeout
        while self._lines.empty() and time.monotonic() < end:
            time.sleep(0.002)
        return not self._lines.empty()

    def lines_so_far(self) -> list[str]:
        """What it has written and nobody has taken yet."""
        lines = []
        with contextlib.suppress(queue.Empty):
            while (line := self._lines.get_nowait()) is not None:
                lines.append(line)
            self._lines.put(None)  # it has ended, and whoever asks again is told so, too
        return lines

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def wait(self, timeout: float = 30.0) -> int:
        """Its exit code."""
        code = self._process.wait(timeout)
        for reader in self._readers:
            reader.join(timeout)
        return code

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)
        if number == signal.SIGSTOP:
            eventually(lambda: is_stopped(self.pid), "the process to stop")

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def open_descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def resident_bytes(self) -> int:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self.wait()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()


Start = Callable[..., Process]

PROGRAM = Path(sys.executable).parent / "tensorbus"


class ServerProcess:
    """`tensorbus store` in a process of its own, to be killed, stopped and started again."""

    def __init__(self, start: Start, port: int, options: list[str]) -> None:
        self._start = start
        self._options = options
        self.port = port
        self.start_again()

    @property
    def url(self) -> str:
        return f"tensorbus://127.0.0.1:{self.port}"

    def kill(self) -> None:
        """At whatever byte it is."""
        self.process.kill()

    def start_again(self) -> None:
        """On the same port, with the same journal."""
        command = [str(PROGRAM), "store", "--port", str(self.port), *self._options]
        self.process = self._start(*command)
        self.port = int(self.process.line().rsplit(":", 1)[1])


StartServer = Callable[..., ServerProcess]
MakeDisk = Callable[[int], Path]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def free_ports(count: int) -> int:
    """The first of so many, one after the other. A port that is free may be followed by one that a
    connection had a moment ago."""
    for _ in range(1000):
        first = free_port()
        try:
            for port in range(first + 1, first + count):
                socket.create_server(("127.0.0.1", port)).close()
        except (OSError, OverflowError):
            continue
        return first
    raise AssertionError(f"there are no {count} free ports in a row")


def start_etcd(folder: Path) -> tuple[Process, int]:
    client, peer = free_port(), free_port()
    process = Process(
        [
            *("etcd", "--name", "test", "--data-dir", str(folder), "--logger", "zap"),
            *("--log-outputs", "stdout", "--enable-v2=false"),
            *("--listen-client-urls", f"http://127.0.0.1:{client}"),
            *("--advertise-client-urls", f"http://127.0.0.1:{client}"),
            *("--listen-peer-urls", f"http://127.0.0.1:{peer}"),
            *("--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}"),
            *("--initial-cluster", f"test=http://127.0.0.1:{peer}"),
            # With the usual election time no lease would be shorter than two seconds.
            *("--heartbeat-interval", "20", "--election-timeout", "200"),
        ]
    )
    try:
        while "serving client traffic" not in process.line():
            pass
    except BaseException:
        process.kill()
        raise
    return process, client


def is_stopped(pid: int) -> bool:
    """Every thread of it: one that still runs may answer a request sent after the signal."""
    return all(
        stat.read_text().rpartition(")")[2].split()[0] == "T"
        for stat in Path(f"/proc/{pid}/task").glob("*/stat")
    )


def processes_with(mark: str) -> list[int]:
    """Whose environment holds it: also those that nobody waits for any more."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def eventually(
    condition: Callable[[], object], what: str, timeout: float = 20.0, pause: float = 0.005
) -> None:
    """For what nobody reports, such as the number of a process's descriptors."""
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, f"not in {timeout} s: {what}"
        time.sleep(pause)
