"""Ray actors pass tensors through tensorbus.

>>> import tensorbus.ray
>>> tensorbus.ray.register()  # before the actors are made
>>> @ray.method(tensor_transport="TENSORBUS")
"""

from tensorbus.extras import missing as _missing

try:
    import ray as _ray  # noqa: F401
except ImportError as error:
    raise _missing("ray", "tensorbus.ray") from error

from tensorbus.ray.agent_group import AgentGroup, agents, client
from tensorbus.ray.registration import register, setup_hook
from tensorbus.ray.transport import TensorBusMetadata, TensorBusTransport, put_frozen, stats

__all__ = [
    "AgentGroup",
    "TensorBusMetadata",
    "TensorBusTransport",
    "agents",
    "client",
    "put_frozen",
    "register",
    "setup_hook",
    "stats",
]
