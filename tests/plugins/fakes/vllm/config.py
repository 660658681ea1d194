"""The current configuration of vLLM 0.32."""

import contextlib

_current = []


@contextlib.contextmanager
def set_current_vllm_config(vllm_config):
    _current.append(vllm_config)
    try:
        yield
    finally:
        _current.pop()


def get_current_vllm_config():
    return _current[-1]
