"""vLLM engines: one in this process behind the routes of a server, and a server itself."""

import contextlib
import hashlib
import http.server
import json
import multiprocessing
import os
import signal
import sys
import threading
import urllib.request
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, Self

import tiny_models
from processes import Process, eventually, free_port

PATIENCE = 1800.0  # a start is mostly imports: a minute on a free machine
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_ENGINE_READY_TIMEOUT_S": str(int(PATIENCE)),
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
}
LIMITS = {"max_model_len": 64, "max_num_seqs": 2, "max_num_batched_tokens": 64}


class Engine:
    """An ``LLM`` of this process, with the routes that a trainer calls."""

    def __init__(self, model: Path, ranks: int, **options: Any) -> None:
        os.environ.update(ENVIRONMENT)
        from vllm import LLM

        self.llm = LLM(
            model=str(model), skip_tokenizer_init=True, enforce_eager=True, dtype="bfloat16",
            tensor_parallel_size=ranks, seed=0, weight_transfer_config={"backend": "tensorbus"},
            **LIMITS, **options,
        )  # fmt: skip
        self.paused = False
        self._lock = threading.Lock()
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def tokens(self) -> list[int]:
        from vllm import SamplingParams

        how = SamplingParams(temperature=0, max_tokens=tiny_models.TOKENS, detokenize=False)
        self.llm.reset_prefix_cache()
        prompt = {"prompt_token_ids": list(tiny_models.PROMPT)}
        return list(self.llm.generate([prompt], how, use_tqdm=False)[0].outputs[0].token_ids)

    def checksums(self) -> dict[str, str]:
        """vLLM's weight checker: SHA-256 of every shard at every worker."""
        found = self.llm.collective_rpc("compute_weight_checksums")
        return {name: digest for worker in found for name, digest in worker.items()}

    def packs(self) -> bool:
        """Whether layers have thrown their weights away, and compute with packed copies of them, as
        those of vLLM do on a CPU for which it has such kernels (AVX-512)."""
        return hashlib.sha256().hexdigest() in self.checksums().values()

    def forget(self) -> None:
        """Zeros in place of all weights; of packed copies nothing is known."""
        self.llm.collective_rpc("reset_weights")

    def version(self) -> str:
        return str(self.llm.get_weight_version())

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self.llm.llm_engine.engine_core.shutdown()
        eventually(lambda: not multiprocessing.active_children(), "the engine to end", 60.0)
        resource_tracker._resource_tracker._stop()  # a process that Python starts beside the others

    def _answer(self, route: str, said: dict[str, Any]) -> None:
        if route == "init_weight_transfer_engine":
            self.llm.init_weight_transfer_engine(said)
        elif route == "update_weights":
            self.llm.update_weights(said)
        elif route == "finish_weight_update":
            self.llm.finish_weight_update(said.get("weight_version"))
        elif route == "start_weight_update":
            self.llm.start_weight_update()
        elif route in ("pause", "resume"):  # for requests on their way, of which there are none
            self.paused = route == "pause"

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        engine = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                route = self.path.strip("/").partition("?")[0]
                try:
                    with engine._lock:
                        engine._answer(route, json.loads(body) if body else {})
                    code, text = 200, "{}"
                except Exception as error:
                    code, text = 500, f"{type(error).__name__}: {error}"
                self.send_response(code)
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: Any) -> None:
                pass

        return Handler


class Server:
    """``vllm serve``."""

    def __init__(self, model: Path, *options: str, environment: dict[str, str] | None = None):
        self._port = free_port()
        limits = [f"--{name.replace('_', '-')}={value}" for name, value in LIMITS.items()]
        self.process = Process(
            ["setsid", str(Path(sys.executable).parent / "vllm"), "serve", str(model),
             "--host=127.0.0.1", f"--port={self._port}", "--enforce-eager", "--dtype=bfloat16",
             "--served-model-name=tiny", '--weight-transfer-config={"backend": "tensorbus"}',
             *limits, *options],
            ENVIRONMENT | (environment or {}),
        )  # fmt: skip

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def wait(self) -> None:
        eventually(self._is_ready, "the server to be ready", PATIENCE)

    def ask(self, route: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"{self.url}/{route}", data, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def tokens(self) -> list[int]:
        body = {
            "model": "tiny", "prompt": tiny_models.PROMPT, "temperature": 0,
            "max_tokens": tiny_models.TOKENS, "ignore_eos": True, "return_token_ids": True,
        }  # fmt: skip
        return list(self.ask("v1/completions", body)["choices"][0]["token_ids"])

    def kill(self) -> None:
        """With its engine, which would outlive it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _is_ready(self) -> bool:
        assert self.process.is_alive(), self.process.errors[-4000:]
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=10) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False
