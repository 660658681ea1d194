"""Named tensors from several senders to many receivers that know neither names nor shapes.

>>> sender = tensorbus.streams.Sender("tensorbus://host:29500", "policy")      # in the trainer
>>> sender.send(model.state_dict().items(), receivers=["rollout-0", "rollout-1"])
>>> receiver = tensorbus.streams.Receiver("tensorbus://host:29500", "policy", "rollout-0")
>>> for name, tensor in receiver.receive(): ...                                # in an engine

Senders put whole tensors into buckets of memory that others can map, and describe each bucket in
the store. Receivers on the same host see that memory itself, others read it; who has taken all of
a bucket says so. A sender has at most ``depth`` buckets that somebody has not taken. Several
senders iterate over the same tensors (making one is a collective call, say) and share the buckets
among themselves. Needs torch, and a store with watches.
"""

from tensorbus.streams.receiver import Receiver
from tensorbus.streams.sender import Sender, Sent

__all__ = ["Receiver", "Sender", "Sent"]
