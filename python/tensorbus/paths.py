"""Where the files of an agent are, and where other hosts reach it."""

from tensorbus import _core


def command_queue_path(rank: int, given: str | None) -> str:
    named = _path("lmdb_command_queue_path", given, "TENSOR_BUS_COMMAND_QUEUE_PATH")
    return named or _core.default_queue_path(rank)


def state_path(rank: int, given: str | None) -> str:
    named = _path("agent_state_lmdb_path", given, "TENSOR_BUS_STATE_PATH")
    return named or _core.default_state_path(rank)


def bind_address(given: str | None) -> str:
    """Empty: this host only."""
    return (_core.variable("TENSORBUS_BIND") or "") if given is None else given


def _path(argument: str, given: str | None, variable: str) -> str | None:
    if given == "":
        raise ValueError(f"{argument} is empty; give a path, or None for the default")
    return given or _core.variable(variable)
