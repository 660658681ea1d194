"""What tests of Ray know of their cluster."""

import os
from pathlib import Path
from typing import Any

FOLDER = str(Path(__file__).parent)
SETTINGS = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_worker_niceness": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "PYTHONPATH": FOLDER,
}


def elsewhere() -> bool:
    """Whether "there" is another node."""
    return "RAY_ADDRESS" in os.environ


def metadata(ref: Any) -> Any:
    """What a receiver is told of the tensors of a ref, once they are made. Before that Ray does not
    lend the ref to anybody."""
    import ray

    manager = ray._private.worker.global_worker.rdt_manager
    return manager.wait_for_tensor_transport_metadata(ref.hex(), 60)
