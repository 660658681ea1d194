"""Making the transports known to Ray."""

import threading

import ray
from ray.experimental.rdt import util

from tensorbus.errors import UnsupportedError
from tensorbus.extras import need
from tensorbus.ray.transport import NumpyTransport, TensorBusTransport

_lock = threading.Lock()
_SUPPORTED = (2, 60)


def register(numpy: bool = False) -> None:
    """Makes ``TENSORBUS`` a tensor transport of Ray, for ``torch.Tensor``. Call it before the
    actors that use it are made; any number of times.

    ``numpy=True`` adds ``TENSORBUS_NUMPY`` for arrays. Ray then pickles every array of this process
    in-band, also those that go through its object store, so that they are copied.
    """
    version = tuple(int(part) for part in ray.__version__.split(".")[:2])
    if version != _SUPPORTED:
        raise UnsupportedError(
            "tensorbus.ray is made for Ray 2.60, whose interface for transports is not yet "
            f"stable; this is {ray.__version__}"
        )
    torch = need("torch", "the transport TENSORBUS", extra="ray")
    transports: list[tuple[type[TensorBusTransport], list[str], type]] = [
        (TensorBusTransport, ["cpu", "cuda"], torch.Tensor)
    ]
    if numpy:
        import numpy as np

        transports.append((NumpyTransport, ["cpu"], np.ndarray))
    with _lock:
        for transport, devices, data_type in transports:
            if transport.NAME not in util.transport_manager_info:
                util.register_tensor_transport(transport.NAME, devices, transport, data_type)


def setup_hook() -> None:
    """Every worker knows the transport from its start with
    ``ray.init(runtime_env={"worker_process_setup_hook": "tensorbus.ray.setup_hook"})``."""
    register()
