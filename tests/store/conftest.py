from backends import backend, servers, store

__all__ = ["backend", "servers", "store"]
