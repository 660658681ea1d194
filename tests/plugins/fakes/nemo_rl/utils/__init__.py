"""As in NeMo-RL."""
