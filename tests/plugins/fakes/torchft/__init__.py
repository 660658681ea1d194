"""Stands in for torchft: its interface, and nothing else."""

__version__ = "2026.10.26"
