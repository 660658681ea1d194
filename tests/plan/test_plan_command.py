import json
import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path

import pytest

PROGRAM = Path(sys.executable).parent / "tensorbus"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PROGRAM, "plan", *arguments], capture_output=True, text=True, timeout=30, check=False
    )


EXAMPLE = ("--source", "4x2:S0,S1", "--target", "8:S1", "--shape", "8192x8192", "--dtype", "bf16")


def test_the_table_gives_bytes_peers_balance_runs_and_time() -> None:
    result = run(*EXAMPLE, "--link", "25")
    assert result.returncode == 0, result.stderr
    assert "128.0 MiB in 32 pieces, 32 runs" in result.stdout
    assert "1.00 x the mean" in result.stdout
    assert "0.671 ms at 25.0 GB/s" in result.stdout
    rows = [line.split() for line in result.stdout.splitlines() if line.startswith("target ")]
    assert ["target", "7", "16.0", "MiB", "4", "4"] in rows


def test_json_and_picture(tmp_path: Path) -> None:
    picture = tmp_path / "plan.svg"
    result = run(*EXAMPLE, "--json", "--svg", str(picture))
    report = json.loads(result.stdout)
    assert report["moved_bytes"] == 8192 * 8192 * 2
    assert {e["bytes"] for e in report["bytes_between"]} == {4 * 2**20}
    root = xml.etree.ElementTree.parse(picture).getroot()
    assert len(root.findall("{http://www.w3.org/2000/svg}path")) == 32


def test_a_model_file_takes_what_it_leaves_out_from_the_options(tmp_path: Path) -> None:
    model = tmp_path / "model.json"
    model.write_text(
        json.dumps(
            [
                {"name": "embedding", "shape": [1000, 64], "source": "4:S0", "target": "2:S1"},
                {"name": "norm", "shape": "64", "dtype": "bf16", "target_dtype": "f32"},
            ]
        )
    )
    result = run("--model", str(model), "--source", "4:R", "--target", "2:R", "--json")
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert [t["name"] for t in report["tensors"]] == ["embedding", "norm"]
    assert report["moved_bytes"] == 1000 * 64 * 4 + 2 * 64 * 2
    assert "2 tensors" in run("--model", str(model), "--source", "4:R", "--target", "2:R").stdout


def test_more_ranks_than_a_table_should_have() -> None:
    result = run("--source", "256:S0", "--target", "64:S1", "--shape", "512x512")
    assert "224 more, none busier" in result.stdout
    assert len(result.stdout.splitlines()) < 80


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "--source"),
        (("--source", "4:S0", "--target", "4:X", "--shape", "8"), "SHAPE:P,...[@ranks]"),
        (("--source", "4:S0", "--target", "4:P", "--shape", "8"), "the target has a Partial"),
        (
            ("--source", "4:S1", "--target", "4:R", "--shape", "8"),
            "source 4:S1: placement S1",
        ),
        (("--source", "4:R", "--target", "4:R", "--shape", "8by8"), "8by8"),
        (("--source", "4:R", "--target", "4:R", "--shape", "8", "--dtype", "x"), "x"),
        ((*EXAMPLE, "--link", "-1"), "expected a number > 0"),
    ],
)
def test_bad_usage_is_exit_code_2_with_a_reason(arguments: tuple[str, ...], says: str) -> None:
    result = run(*arguments)
    assert result.returncode == 2
    assert says in result.stderr
    assert result.stdout == ""


def test_a_bad_model_names_the_tensor(tmp_path: Path) -> None:
    model = tmp_path / "model.json"
    model.write_text('[{"name": "a", "shape": [4]}, {"shape": [4]}]')
    result = run("--model", str(model), "--source", "4:R", "--target", "2:R")
    assert result.returncode == 2
    assert "tensor 1 of the model" in result.stderr
    result = run("--model", str(tmp_path / "none.json"))
    assert result.returncode == 1
    assert "No such file" in result.stderr


def test_help_explains_the_grammar() -> None:
    result = run("--help")
    assert result.returncode == 0
    for word in ("SS<d>/<k>", "P[.op]", "--link", "Examples:"):
        assert word in result.stdout
