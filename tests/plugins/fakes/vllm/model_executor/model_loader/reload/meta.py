"""As in vLLM 0.32: what layers were before they were processed."""

import torch


def restore_layer_on_meta(layer, info):
    for name, parameter in info.restore_metadata[0].items():
        fake = parameter.to("meta")
        layer.register_parameter(name, torch.nn.Parameter(fake, requires_grad=False))
