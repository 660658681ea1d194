"""What a stranger gets: light imports, the program, the installed C++ library, the README."""

import ast
import importlib
import re
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
import tensorbus

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(sys.executable).parent / "tensorbus"
CHANGES = (ROOT / "CHANGELOG.md").read_text()


def test_import_needs_no_heavy_package():
    code = (
        "import sys, tensorbus, tensorbus.kvstore, tensorbus.fserver, tensorbus.streams;"
        "import tensorbus.vllm, tensorbus.trl;"
        "names = {'torch', 'ray', 'lmdb', 'numpy', 'vllm', 'verl', 'nemo_rl', 'trl', 'torchft'};"
        "heavy = names & set(sys.modules);"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)


@pytest.mark.parametrize(
    ("package", "call", "message"),
    [
        ("ray", "import tensorbus.ray", "tensorbus.ray needs ray: pip install 'tensorbus[ray]'"),
        (
            "torch",
            "import tensorbus.ray; tensorbus.ray.register()",
            "TENSORBUS needs torch: pip install 'tensorbus[ray]'",
        ),
        (
            "torch",
            "from tensorbus import _core; _core.empty([([1], 'float32', True)])",
            "a tensor of torch needs torch: pip install 'tensorbus[torch]'",
        ),
        (
            "lmdb",
            "import tensorbus as t; c = object.__new__(t.TensorBusClient);"
            "c.agent_state_lmdb_path = 'x'; c._state = None; c.state_env",
            "an agent's state needs lmdb: pip install 'tensorbus[lmdb]'",
        ),
        (
            "vllm",
            "import tensorbus.vllm.engine",
            "tensorbus.vllm.engine needs vLLM 0.28 to 0.32: pip install 'tensorbus[vllm]'",
        ),
        (
            "vllm",
            "import tensorbus.vllm.loader",
            "tensorbus.vllm.loader needs vLLM 0.28 to 0.32: pip install 'tensorbus[vllm]'",
        ),
        (
            "vllm",
            "import tensorbus.vllm.trainer",
            "tensorbus.vllm.trainer needs vLLM 0.28 to 0.32: pip install 'tensorbus[vllm]'",
        ),
        (
            "verl",
            "import tensorbus.verl",
            "tensorbus.verl needs verl 0.9: pip install 'tensorbus[verl]'",
        ),
        (
            "torch",
            "import tensorbus.checkpoint",
            "tensorbus.checkpoint needs torch 2.13: pip install 'tensorbus[checkpoint]'",
        ),
        (
            "torchft",
            "import tensorbus.torchft",
            "tensorbus.torchft needs torchft: pip install 'tensorbus[torchft]'",
        ),
        (
            "torch",
            "import tensorbus.trl; tensorbus.trl.WeightTransfer('http://localhost')",
            "tensorbus.trl needs torch: pip install 'tensorbus[trl]'",
        ),
    ],
)
def test_what_needs_another_package_names_the_extra(package, call, message):
    code = f"import sys; sys.modules['{package}'] = None; {call}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert message in done.stderr
    assert "\nImportError: " in done.stderr


def test_extras_are_what_errors_name():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (table,) = (
        mark.args[1]
        for mark in test_what_needs_another_package_names_the_extra.pytestmark
        if mark.name == "parametrize"
    )
    named = {re.search(r"tensorbus\[(\w+)\]", message)[1] for _, _, message in table}
    assert named == set(project["optional-dependencies"])
    assert any(need.startswith("numpy") for need in project["dependencies"])


def test_the_extras_are_documented():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = (ROOT / "docs/install.md").read_text()
    documented = re.findall(r"pip install 'tensorbus\[(\w+)\]'` \|", text)
    assert sorted(documented) == sorted(project["optional-dependencies"])
    (line,) = re.findall(r"^- Extras (.+?)(?=\n- )", CHANGES, re.MULTILINE | re.DOTALL)
    assert set(re.findall(r"`(?:tensorbus)?\[(\w+)\]`", line)) == set(documented)


def test_import_is_quick():
    """No threads, no network, nothing that a library's import should not do."""
    code = "import threading, tensorbus.kvstore; assert threading.active_count() == 1"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)


def test_program_says_its_version():
    done = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0
    assert done.stdout.strip() == f"tensorbus {tensorbus.__version__}"


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["kv"], ["store", "--port", "x"]])
def test_wrong_usage_is_exit_code_2(arguments):
    done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=30)
    assert done.returncode == 2
    assert "--help" in done.stderr + done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["stroe"], '"stroe" is no command; did you mean "store"?'),
        (["foo"], '"foo" is no command; there are agent, dashboard, doctor, kv, launch, plan, st'),
        (["kv", "gte", "x"], '"gte" is no command; did you mean "get"?'),
        (["kv", "foo"], '"foo" is no command; there are barrier, delete, get, list, set, wait'),
        (["agent", "--rnk", "0"], '"--rnk" is no option; did you mean "--rank"?'),
        (["kv", "get", "--stor=x"], '"--stor" is no option; did you mean "--store"?'),
        (["--versoin"], '"--versoin" is no option; did you mean "--version"?'),
        (["doctor", "--zzz"], '"--zzz" is no option; there are --'),
    ],
)
def test_an_unknown_word_is_named_with_the_nearest_one(arguments, message):
    done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=30)
    assert done.returncode == 2
    assert message in done.stderr
    assert "--help" in done.stderr


def test_a_script_of_launch_has_options_of_its_own():
    done = subprocess.run(
        [PROGRAM, "launch", "nothing.py", "--zzz"], capture_output=True, text=True, timeout=60
    )
    assert "is no option" not in done.stderr


def test_log_records_reach_python():
    code = (
        "import logging, sys; logging.basicConfig(level=logging.DEBUG, stream=sys.stdout);"
        "import tensorbus"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=30,
        env={"TENSORBUS_TYPO": "1", "PATH": ""},
    )
    assert "WARNING:tensorbus:" in done.stdout
    assert "TENSORBUS_TYPO" in done.stdout


@pytest.mark.timeout(300)
def test_installed_library_is_found_by_cmake(tmp_path):
    """find_package(tensorbus) in a project of its own, linked and run."""
    prefix = tmp_path / "prefix"
    build = tmp_path / "build"

    def run(*command: str | Path) -> str:
        done = subprocess.run(command, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run("cmake", "--install", ROOT / "build/release", "--prefix", prefix, "--component", "sdk")
    run(
        *("cmake", "-S", ROOT / "tests/install", "-B", build, "-G", "Ninja"),
        f"-DCMAKE_PREFIX_PATH={prefix}",
    )
    run("cmake", "--build", build)
    caught, greeting = run(build / "smoke").splitlines()
    assert caught.startswith('caught: store URL: unknown scheme "nowhere": use tensorbus, ')
    assert greeting == "hello from the store"
    assert run(build / "attention_ffn").count("20 steps are right") == 2


def code_blocks(language: str) -> list[str]:
    text = (ROOT / "README.md").read_text()
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def with_note(block: str, file: Path) -> str:
    """Notes in a file when its last statement is over, but not yet what the statement is in."""
    tree = ast.parse(block)
    body = tree.body
    while isinstance(body[-1], ast.With):
        body = body[-1].body
    # By a clock that all processes share.
    note = f"import time; open({str(file)!r}, 'w').write(str(time.monotonic()))"
    body.extend(ast.parse(note).body)
    return ast.unparse(tree)


def seconds_to_exit(block: str, folder: Path) -> float:
    """From its last statement to the end of its process."""
    script, last = folder / "block.py", folder / "last"
    script.write_text(with_note(block, last))
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=60, cwd=folder
    )
    end = time.monotonic()
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", "it warns"
    return end - float(last.read_text())


@pytest.fixture(scope="module")
def exit_of_others(tmp_path_factory):
    """The seconds that an interpreter with torch takes, on a machine that may be busy."""
    return seconds_to_exit("import torch", tmp_path_factory.mktemp("exit"))


@pytest.mark.parametrize("number", range(len(code_blocks("python"))))
def test_python_blocks_of_the_readme_run_and_exit_at_once(number, exit_of_others, tmp_path):
    assert seconds_to_exit(code_blocks("python")[number], tmp_path) < exit_of_others + 3


@pytest.mark.parametrize("number", range(len(code_blocks("sh"))))
def test_shell_blocks_of_the_readme_run(number, tmp_path):
    """Those that call the program; `make` is what is running right now."""
    block = code_blocks("sh")[number]
    lines = [line for line in block.splitlines() if not re.match("(make|pip) ", line)]
    if not any(lines):
        made = {line.split()[1] for line in block.splitlines() if line.startswith("make ")}
        assert made <= make_targets()
        return
    script = "set -eu\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n" + "\n".join(lines)
    subprocess.run(
        ["bash", "-c", script],
        check=True,
        timeout=60,
        cwd=tmp_path,
        env={"PATH": f"{PROGRAM.parent}:/usr/bin:/bin"},
    )


def test_the_first_command_of_the_readme_brings_what_its_first_example_imports(tmp_path):
    """As a shell reads it, with the wheels of a release in the folder."""
    first = code_blocks("sh")[0].strip()
    assert first.startswith("pip install ")
    for tag in ("cp311-cp311-manylinux_2_34_x86_64", "cp311-cp311-manylinux_2_34_aarch64"):
        (tmp_path / f"tensorbus-0.1.0-{tag}.whl").touch()
    (tmp_path / "tensorbus-0.1.0-cp312-abi3-manylinux_2_34_x86_64.whl").touch()
    shown = first.replace("pip install ", "printf %s ")
    done = subprocess.run(["bash", "-c", shown], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout == "./tensorbus-0.1.0-cp311-cp311-manylinux_2_34_x86_64.whl[torch]"
    assert code_blocks("python")[0].startswith("import torch\n")


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z0-9-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_readme_has_blocks_of_both_kinds():
    assert code_blocks("python")
    assert code_blocks("sh")


def test_make_help_lists_every_promised_target():
    promised = {"demo", "build", "test", "test-long", "test-tsan", "bench", "lint", "format"}
    assert promised | {"clean", "help", "wheel", "release", "test-aarch64"} <= make_targets()


def test_environment_variables_are_documented_and_few():
    """Fewer than twenty, each in the settings table of docs/index.md."""
    source = (ROOT / "src/base/config.cc").read_text()
    names = set(re.findall(r'Setting\{"(TENSORBUS_\w+)"', source))
    documented = set(re.findall(r"`(TENSORBUS_\w+)`", (ROOT / "docs/index.md").read_text()))
    assert names
    assert len(names) < 20
    assert names <= documented


@pytest.fixture
def check_wheel(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return importlib.import_module("check_wheel")


def test_the_archive_for_cpp_has_what_public_headers_declare_and_no_more(check_wheel):
    headers = "\n".join(path.read_text() for path in (ROOT / "include/tensorbus").glob("*.h"))
    declared = check_wheel.declared_in(headers)
    archive = (ROOT / "build/release/libtensorbus.a").read_bytes()
    assert list(check_wheel.faults_of_archive(archive, declared)) == []
    symbols = {name for elf in check_wheel.objects(archive) for name in check_wheel.linkable(elf)}
    assert len(symbols) > 100


def test_the_extension_exports_its_entry_alone(check_wheel):
    (library,) = (ROOT / "python/tensorbus").glob("_core*.so")
    with library.open("rb") as file:
        assert check_wheel.exported(check_wheel.ELFFile(file)) == {"PyInit__core"}
