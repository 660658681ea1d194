"""The exceptions that Python does not have.

Everything else raises what Python users expect: ``ValueError`` for a bad argument,
``TimeoutError`` at a deadline, ``ConnectionError`` when the other process cannot be reached,
``RuntimeError`` for the rest. Every message names who, what and why.
"""


class UnsupportedError(RuntimeError):
    """This backend or build cannot do what was asked; the message names one that can."""


class AuthenticationError(ConnectionError):
    """The other side refused our credentials, or could not prove its own."""


class PeerLostError(RuntimeError):
    """A process that the call needed is gone; the message names it."""


class QueueFullError(RuntimeError):
    """A bounded queue stayed full until the deadline."""


class WithdrawnError(RuntimeError):
    """The owner took its tensors back; ask for what it offers next."""


class CancelledError(RuntimeError):
    """The call was ended by ``close()`` or a cancellation, not by its own fault."""
