"""Signatures that are written by hand in the bindings say what the bindings take.

The stub is made from them, and mypy believes the stub. Those that nanobind writes itself are true.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

BINDINGS = Path(__file__).resolve().parents[2] / "python/bindings"
DEFINITION = re.compile(r"\.def(?:_static|_prop_ro)?\(")
NAMED = re.compile(r'nb::arg\("(\w+)"\)(?:\.none\(\))?(\s*=)?')
STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True)
class Parameter:
    name: str
    has_default: bool


@dataclass(frozen=True)
class Definition:
    place: str
    signature: str
    taken: list[Parameter]


def end_of_call(text: str, start: int) -> int:
    """Where the parenthesis before `start` closes."""
    depth = 1
    at = start
    while depth > 0:
        if string := STRING.match(text, at):
            at = string.end()
            continue
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        at += 1
    return at - 1


def definitions() -> Iterator[Definition]:
    """All with a signature of their own."""
    for path in sorted(BINDINGS.glob("*.cc")):
        text = re.sub(r"//[^\n\"]*\n", "\n", path.read_text())
        for found in DEFINITION.finditer(text):
            body = text[found.end() : end_of_call(text, found.end())]
            if (written := body.find("nb::sig(")) < 0:
                continue
            start = written + len("nb::sig(")
            signature = "".join(STRING.findall(body[start : end_of_call(body, start)]))
            taken = [Parameter(name, bool(default)) for name, default in NAMED.findall(body)]
            yield Definition(f"{path.name}: {signature}", signature, taken)


def said(signature: str) -> list[Parameter]:
    without_generics = re.sub(r"^def (\w+)\[\w+\]", r"def \1", signature)  # of 3.12
    function = ast.parse(f"{without_generics}: ...").body[0]
    assert isinstance(function, ast.FunctionDef)
    names = [each.arg for each in function.args.args]
    required = len(names) - len(function.args.defaults)
    parameters = [Parameter(name, i >= required) for i, name in enumerate(names)]
    keywords = zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
    parameters += [Parameter(each.arg, default is not None) for each, default in keywords]
    return [each for each in parameters if each.name != "self"]


@pytest.mark.parametrize("definition", definitions(), ids=lambda definition: definition.place)
def test_a_signature_says_what_the_binding_takes(definition):
    assert said(definition.signature) == definition.taken


def test_the_signatures_are_found():
    written = sum(path.read_text().count("nb::sig(") for path in BINDINGS.glob("*.cc"))
    assert len(list(definitions())) == written > 20
