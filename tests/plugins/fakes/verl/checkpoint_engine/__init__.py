"""As in verl."""
