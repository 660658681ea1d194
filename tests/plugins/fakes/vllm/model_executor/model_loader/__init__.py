"""The registry of vLLM 0.32."""

_LOAD_FORMAT_TO_MODEL_LOADER: dict = {}


def register_model_loader(load_format):
    def wrapper(cls):
        _LOAD_FORMAT_TO_MODEL_LOADER[load_format] = cls
        return cls

    return wrapper
