"""What all tests share: real servers, child processes that never outlive their test, leak checks.

Everything that is started here is ended here, by its process id, also when a test fails.
"""

import os
import shutil
import signal
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import MakeDisk, Process, ServerProcess, Start, StartServer, start_etcd
from tensorbus.kvstore import StoreServer

SHARED_MEMORY = Path("/dev/shm")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run the tests marked long as well")
    parser.addoption(
        "--real", action="store_true", help="plug-ins in the frameworks, not in their stand-ins"
    )
    parser.addoption(
        "--pictures", action="store_true", help="renew the pictures of the page in docs"
    )


def pytest_configure() -> None:
    # A shell starts what runs in its background with Ctrl-C ignored, and children inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--long"):
        return
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker(pytest.mark.skip(reason="a long test: give --long"))


@pytest.fixture
def start_program() -> Iterator[Start]:
    """Starts commands; kills what still runs when the test is over."""
    started: list[Process] = []

    def start(*command: str, env: dict[str, str] | None = None) -> Process:
        started.append(Process(list(command), env))
        return started[-1]

    yield start
    for process in started:
        process.kill()


@pytest.fixture
def start_python(start_program: Start) -> Start:
    """Starts Python scripts, given as text, with arguments."""

    def start(script: str, *arguments: object, env: dict[str, str] | None = None) -> Process:
        texts = [str(argument) for argument in arguments]
        return start_program(sys.executable, "-u", "-c", script, *texts, env=env)

    return start


@pytest.fixture
def start_server(start_program: Start, tmp_path: Path) -> StartServer:
    def start(
        *, port: int = 0, journal: Path | None = None, token: str = "", allow_torch: bool = False
    ) -> ServerProcess:
        options = [] if journal is None else ["--journal", str(journal)]
        if token:
            (tmp_path / "token").write_text(token + "\n")
            (tmp_path / "token").chmod(0o600)
            options += ["--token-file", str(tmp_path / "token")]
        if allow_torch:
            options.append("--allow-torch")
        return ServerProcess(start_program, port, options)

    return start


@pytest.fixture
def make_disk(start_program: Start, tmp_path: Path) -> MakeDisk:
    """Mounts a disk of so many bytes for a process that lives as long as the test; its folder."""

    def make(size: int) -> Path:
        folder = tmp_path / "disk"
        folder.mkdir()
        script = 'mount -t tmpfs -o size="$1" tmpfs "$2" && echo mounted || echo refused; exec cat'
        holder = start_program("unshare", "--mount", "sh", "-c", script, "sh", str(size), folder)
        try:
            mounted = holder.line() == "mounted"
        except AssertionError:
            mounted = False
        if not mounted:
            pytest.skip("this user may not mount a file system")
        return Path(f"/proc/{holder.pid}/root{folder}")

    return make


@pytest.fixture(scope="session")
def store_server() -> Iterator[StoreServer]:
    """One server in this process for all tests that do not harm it; keep to keys of your own."""
    with StoreServer("127.0.0.1", 0) as server:
        yield server


@pytest.fixture(scope="session")
def etcd(scratch: Path) -> Iterator[int]:
    """A real etcd on loopback; its client port."""
    folder = scratch / "etcd"
    process = None
    try:
        process, port = start_etcd(folder)
        yield port
    finally:
        if process is not None:
            process.kill()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def unique() -> str:
    """A name that nobody else uses."""
    return uuid.uuid4().hex


def children() -> set[int]:
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        found.update(int(pid) for pid in (task / "children").read_text().split())
    return found


def shared_memory() -> set[str]:
    return {path.name for path in SHARED_MEMORY.glob("*tensorbus*")}


@pytest.fixture(scope="session", autouse=True)
def compiler_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Operations on tensors without memory import torch's compiler, which makes a folder."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("compiler")
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder))
        yield


@pytest.fixture(scope="session", autouse=True)
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder for everything temporary, so that what is left there is ours. After the last test
    there are no child processes, no shared memory and no temporary files.

    Session fixtures with a process of their own ask for it, so that they end before it looks.
    """
    scratch = tmp_path_factory.mktemp("scratch")
    before = os.environ.get("TMPDIR")
    os.environ["TMPDIR"] = str(scratch)
    tempfile.tempdir = str(scratch)
    children_before, memory_before = children(), shared_memory()
    try:
        yield scratch
    finally:
        tempfile.tempdir = None
        os.environ.pop("TMPDIR")
        if before is not None:
            os.environ["TMPDIR"] = before
    left = children() - children_before
    commands = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in left}
    assert not commands, "processes are left"
    assert shared_memory() <= memory_before, "shared memory is left"
    assert not list(scratch.iterdir()), "temporary files are left"
