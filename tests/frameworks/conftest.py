"""Plug-ins inside of the real frameworks: `make test-plugins` installs them, each beside .venv.

Where a framework is not installed its files are not looked at; `tests/plugins` has the same
plug-ins against stand-ins.
"""

from importlib.util import find_spec

NEEDED = {
    "test_torchft.py": "torchft",
    "test_vllm_updates.py": "vllm",
    "test_vllm_server.py": "vllm",
    "test_vllm_example.py": "vllm",
    "test_verl.py": "verl",
}
collect_ignore = [file for file, module in NEEDED.items() if find_spec(module) is None]
