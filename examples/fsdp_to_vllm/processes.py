"""The trainer under torchrun and the vLLM server. None outlives the run, however it ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any, Self

HERE = Path(__file__).parent
PROGRAMS = Path(sys.executable).parent
STARTING_TIME = 1800.0  # of an engine; about a minute on a free machine
PAUSE = 0.5


class Running:
    """A process with all its children."""

    def __init__(self, log: Path, environment: dict[str, str], *command: str) -> None:
        self._log = log
        with open(log, "a") as errors:
            self._process = subprocess.Popen(
                command, cwd=HERE, env=os.environ | environment, stdout=errors, stderr=errors,
                stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip

    def check(self) -> None:
        if self._process.poll() not in (None, 0):
            raise SystemExit(f"{self._log.name}:\n{self._log.read_text()[-4000:]}")

    def wait(self, timeout: float) -> None:
        self._process.wait(timeout)
        self.check()

    def kill(self) -> None:
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def start_trainer(folder: Path, store: str) -> Running:
    environment = {
        "TENSORBUS_STORE": store, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
        "TMPDIR": str(folder),
    }  # fmt: skip
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "trainer.py"]
    return Running(folder / "trainer.log", environment, sys.executable, *torchrun)


class Engine(Running):
    """`vllm serve` with the weights that the trainer has published: there are none on the disk."""

    def __init__(self, folder: Path, model: Path, store: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        environment = {
            "TENSORBUS_STORE": store, "VLLM_SERVER_DEV_MODE": "1", "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1",
            "VLLM_NO_USAGE_STATS": "1", "VLLM_ENGINE_READY_TIMEOUT_S": str(int(STARTING_TIME)),
        }  # fmt: skip
        super().__init__(
            folder / "engine.log", environment, str(PROGRAMS / "vllm"), "serve", str(model),
            "--host=127.0.0.1", f"--port={port}", "--served-model-name=poet", "--enforce-eager",
            "--dtype=bfloat16", "--max-model-len=128", "--max-num-seqs=2",
            "--max-num-batched-tokens=128", "--no-enable-prefix-caching",
            "--load-format=tensorbus", '--weight-transfer-config={"backend": "tensorbus"}',
        )  # fmt: skip

    def wait_until_ready(self, *others: Running) -> float:
        """How long it took."""
        began = time.monotonic()
        while not self._is_ready():
            for each in (self, *others):
                each.check()
            if time.monotonic() - began > STARTING_TIME:
                raise SystemExit(f"the engine did not start in {STARTING_TIME:.0f} s")
            time.sleep(PAUSE)
        return time.monotonic() - began

    def complete(self, prompt: list[int], tokens: int) -> list[int]:
        said = {
            "model": "poet", "prompt": prompt, "max_tokens": tokens, "temperature": 0,
            "ignore_eos": True, "return_token_ids": True,
        }  # fmt: skip
        answer = self._ask("v1/completions", json.dumps(said).encode())
        return list(answer["choices"][0]["token_ids"])

    def version(self) -> str:
        return str(self._ask("weight_info")["weight_version"])

    def _ask(self, route: str, data: bytes | None = None) -> Any:
        request = urllib.request.Request(
            f"{self.url}/{route}", data, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=10) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False
