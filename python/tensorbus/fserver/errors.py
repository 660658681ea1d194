"""Misuse and timeouts are ``RuntimeError`` in the library that this one stands in for."""


class BadArgument(RuntimeError, ValueError):
    """The call itself is wrong: its role, its time, its arguments."""


class WaitTimeout(TimeoutError, RuntimeError):
    """The time is up; the message names whom the call waited for."""
