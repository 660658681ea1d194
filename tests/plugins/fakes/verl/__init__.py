"""Stands in for verl 0.9.1: its interface, and nothing else."""

__version__ = "0.9.1"
