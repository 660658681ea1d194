"""As in vLLM."""

from .layerwise import finalize_layerwise_reload, initialize_layerwise_reload

__all__ = ["finalize_layerwise_reload", "initialize_layerwise_reload"]
