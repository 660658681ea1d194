"""vLLM's own way to load weights into a model that is already served."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Iterator
from typing import Any

logger = logging.getLogger("tensorbus")


class Reload:
    """Layer by layer: vLLM loads, processes and copies to where the kernels read."""

    def __init__(self, model: Any, model_config: Any) -> None:
        self._model, self._model_config = model, model_config
        self._begun = False

    def load(self, tensors: dict[str, Any]) -> None:
        """One iterator of everything: some loaders put tensors together that come far apart."""
        if not tensors:
            return
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        self._begun = True
        initialize_layerwise_reload(self._model)
        try:
            with _checks_of_drafts_off():
                self._model.load_weights(iter(tensors.items()))
        except BaseException:
            self._begun = False
            abandon(self._model)
            raise

    def finish(self) -> None:
        if not self._begun:
            return
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        finalize_layerwise_reload(self._model, self._model_config)


def abandon(model: Any) -> None:
    """Puts back what the kernels read, so that the next load begins anew: vLLM would go on with
    layers that are half loaded."""
    try:
        from vllm.model_executor.model_loader.reload import layerwise

        for layer in model.modules():
            info = layerwise.get_layerwise_info(layer)
            if info.can_load():
                if info.kernel_tensors is not None:
                    layerwise._place_kernel_tensors(layer, info)
                info.reset()
    except Exception as error:
        logger.error("tensorbus: vLLM's model stays half loaded: %s: %s", type(error), error)


@contextlib.contextmanager
def with_parameters_of_loaders(modules: Collection[Any]) -> Iterator[None]:
    """Modules that have thrown away what was loaded have parameters of that shape again, with the
    loaders that know them and without memory."""
    if not modules:
        yield
        return
    from vllm.model_executor.model_loader.reload import layerwise, meta

    parts = ("_parameters", "_buffers", "_non_persistent_buffers_set")
    before = [(each, {part: getattr(each, part).copy() for part in parts}) for each in modules]
    try:
        for each in modules:
            meta.restore_layer_on_meta(each, layerwise.get_layerwise_info(each))
        yield
    finally:
        for module, own in before:
            vars(module).update(own)


def _checks_of_drafts_off() -> contextlib.AbstractContextManager[Any]:
    """As vLLM's own engines: an update need not have the weights of draft layers."""
    try:
        from vllm.model_executor.model_loader.mtp_validation import disable_mtp_completeness_check
    except ImportError:  # of a vLLM that checks nothing
        return contextlib.nullcontext()
    context: contextlib.AbstractContextManager[Any] = disable_mtp_completeness_check()
    return context
