"""Stands in for NeMo-RL: its interface, and nothing else."""

__version__ = "0.7.0"
