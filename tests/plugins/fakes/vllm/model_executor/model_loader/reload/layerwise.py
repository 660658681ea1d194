"""Loads into other parameters than those that are served. A model writes down what is done to it.

As in vLLM 0.32 a layer of which a load was begun is not begun again before its end.
"""

from weakref import WeakKeyDictionary

import torch


class LayerReloadingInfo:
    kernel_tensors: dict | None = None
    restore_metadata: tuple = ({}, {})

    def can_load(self) -> bool:
        return self.kernel_tensors is not None

    def reset(self):
        self.kernel_tensors = None


_infos: WeakKeyDictionary = WeakKeyDictionary()


def get_layerwise_info(layer):
    return _infos.setdefault(layer, LayerReloadingInfo())


def record_metadata_for_reloading(model):
    for layer in model.modules():
        info = get_layerwise_info(layer)
        info.restore_metadata = ({n: p.to("meta") for n, p in layer._parameters.items()}, {})


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
        shapes = info.kernel_tensors | info.restore_metadata[0]
        for name, kernel in shapes.items():
            empty = torch.full_like(kernel, torch.nan, device="cpu")
            layer.register_parameter(name, torch.nn.Parameter(empty, requires_grad=False))


def finalize_layerwise_reload(model, model_config):
    model.events.append(f"finalize {model_config}")
    for layer in model.modules():
        info = get_layerwise_info(layer)
        if any(not bool(each.isnan().all()) for each in layer._parameters.values()):
            if hasattr(layer, "process"):
                layer.process()
            for name, kernel in info.kernel_tensors.items():
                kernel.data.copy_(layer._parameters[name])
        _place_kernel_tensors(layer, info)
        info.reset()
