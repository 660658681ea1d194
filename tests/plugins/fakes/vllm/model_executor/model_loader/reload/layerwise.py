"""Loads into other parameters than those that are served. A model writes down what is done to it.

As in vLLM 0.32 a layer of which a load was begun is not begun again before its end.
"""

from weakref import WeakKeyDictionary

import torch


class LayerReloadingInfo:
    kernel_tensors: dict | None = None

    def can_load(self) -> bool:
        return self.kernel_tensors is not None

    def reset(self):
        self.kernel_tensors = None


_infos: WeakKeyDictionary = WeakKeyDictionary()


def get_layerwise_info(layer):
    return _infos.setdefault(layer, LayerReloadingInfo())


def _place_kernel_tensors(layer, info):
    for name, kernel in info.kernel_tensors.items():
        layer.register_parameter(name, kernel)


def initialize_layerwise_reload(model):
    model.events.append("reload")
    for layer in model.modules():
        info = get_layerwise_info(layer)
        if info.can_load():
            continue
        info.kernel_tensors = dict(layer._parameters)
        for name, kernel in info.kernel_tensors.items():
            empty = torch.full_like(kernel, torch.nan)
            layer.register_parameter(name, torch.nn.Parameter(empty, requires_grad=False))


def finalize_layerwise_reload(model, model_config):
    model.events.append(f"finalize {model_config}")
    for layer in model.modules():
        info = get_layerwise_info(layer)
        for name, kernel in info.kernel_tensors.items():
            loaded = layer._parameters[name]
            if not bool(loaded.isnan().all()):
                kernel.data.copy_(loaded)
        _place_kernel_tensors(layer, info)
        info.reset()
