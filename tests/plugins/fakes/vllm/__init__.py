"""Stands in for vLLM 0.32: its interface, and nothing else."""

__version__ = "0.32.0"
