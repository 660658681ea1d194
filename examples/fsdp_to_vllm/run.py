"""An FSDP2 trainer, and a vLLM engine that serves what it has learned so far.

build/plugins/vllm/bin/python examples/fsdp_to_vllm/run.py
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from language import decode, encode, save
from processes import Engine, Running, start_trainer
from tensorbus.kvstore import KVStore, StoreServer, connect

PROMPT = "the wheels on "
LENGTH = 40
PATIENCE = 600.0  # for a version


class Story:
    """What happens, told line by line."""

    def __init__(self, store: KVStore, trainer: Running) -> None:
        self._store, self._trainer = store, trainer
        self.version = 0
        self.updates: list[float] = []
        self.texts: dict[int, str] = {}

    def next_version(self) -> dict[str, Any]:
        """Of the trainer, when it is there; in between versions pass."""
        end = time.monotonic() + PATIENCE
        while not self._store.exists(f"versions/{self.version + 1}"):
            self._trainer.check()
            if time.monotonic() > end:
                raise SystemExit(f"no version {self.version + 1} in {PATIENCE:.0f} s")
            time.sleep(0.01)
        self.version += 1
        told: dict[str, Any] = json.loads(self._store.get(f"versions/{self.version}"))
        return told

    def newest_version(self) -> dict[str, Any]:
        told = self.next_version()
        while self._store.exists(f"versions/{self.version + 1}"):
            told = self.next_version()
        return told

    def show(self, engine: Engine, told: dict[str, Any]) -> None:
        """What the engine says; the trainer goes on meanwhile."""
        before = engine.version()
        text = decode(engine.complete(encode(PROMPT), LENGTH))
        if told["served"]:
            self.updates.append(told["seconds"])
        if before == engine.version() and before.isdigit():
            self.texts[int(before)] = text
        print(f"  version {before:>3}  loss {told['loss']:.3f}  {PROMPT}{text}", flush=True)

    def let_it_end(self) -> None:
        self._store.set("last", str(self.version + 1))


def tell(text: str) -> None:
    print(text, flush=True)


def follow(story: Story, engine: Engine, versions: int) -> None:
    shown = 0
    end = time.monotonic() + PATIENCE
    while shown < versions:
        if time.monotonic() > end:
            raise SystemExit(f"the engine took {shown} of {versions} versions in {PATIENCE:.0f} s")
        told = story.newest_version()
        if told["served"]:
            story.show(engine, told)
            shown += 1


def check_what_came_back(answer: list[int], shelf: int, version: str) -> None:
    """It has answered with what was on the shelf, and serves a later version now."""
    if len(answer) != LENGTH:
        raise SystemExit(f"the engine that came back said {len(answer)} letters, not {LENGTH}")
    if not version.isdigit() or int(version) <= shelf:
        raise SystemExit(f"the engine that came back serves version {version}, not after {shelf}")


def run(folder: Path, versions: int) -> Story:
    model = folder / "model"
    save(model)
    with (
        StoreServer("127.0.0.1", 0) as server,
        connect(server.url) as store,
        start_trainer(folder, server.url) as trainer,
    ):
        story = Story(store, trainer)
        tell("two trainer ranks learn a poem with FSDP2; vLLM starts from their shelf ...")
        with Engine(folder, model, server.url) as engine:
            tell(f"the engine is there after {engine.wait_until_ready(trainer):.0f} s")
            store.set("engine", engine.url)
            follow(story, engine, versions)
        tell(f"the engine is killed at version {story.version}; the trainer goes on ...")
        with Engine(folder, model, server.url) as engine:
            seconds = engine.wait_until_ready(trainer)
            told = story.newest_version()
            tell(f"it is back after {seconds:.0f} s, from the shelf; version {told['version']}:")
            answer = engine.complete(encode(PROMPT), LENGTH)
            tell(f"  from the shelf  {PROMPT}{decode(answer)}")
            store.set("engine", engine.url)
            follow(story, engine, 2)
            check_what_came_back(answer, told["version"], engine.version())
            story.let_it_end()
            trainer.wait(PATIENCE)
    return story


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--versions", type=int, default=8, help="to show before the engine is killed"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        story = run(Path(folder), options.versions)
    texts = len(set(story.texts.values()))
    tell(f"{len(story.texts)} versions shown, {texts} different answers")
    middle = sorted(story.updates)[len(story.updates) // 2]
    tell(f"an update took {middle * 1000:.0f} ms (median of {len(story.updates)})")
    if texts < 2:
        raise SystemExit("the answers never changed")


if __name__ == "__main__":
    main()
