"""A model writes down what is done to it."""


def initialize_layerwise_reload(model):
    model.events.append("reload")


def finalize_layerwise_reload(model, model_config):
    model.events.append(f"finalize {model_config}")
