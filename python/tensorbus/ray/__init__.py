"""Ray actors pass tensors through tensorbus.

>>> import tensorbus.ray
>>> tensorbus.ray.register()  # before the actors are made
>>> @ray.method(tensor_transport="TENSORBUS")
"""

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
