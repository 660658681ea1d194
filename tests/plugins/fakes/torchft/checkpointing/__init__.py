"""As in torchft."""
