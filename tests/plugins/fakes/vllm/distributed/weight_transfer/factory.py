"""The registries of vLLM 0.32."""

import importlib


class _Factory:
    _registry: dict

    @classmethod
    def register_engine(cls, name, module_path_or_cls, class_name=None):
        if name in cls._registry:
            raise ValueError(f"Weight transfer engine '{name}' is already registered.")
        module_path = module_path_or_cls
        cls._registry[name] = lambda: getattr(importlib.import_module(module_path), class_name)


class WeightTransferEngineFactory(_Factory):
    _registry: dict = {}  # noqa: RUF012


class WeightTransferTrainerFactory(_Factory):
    _registry: dict = {}  # noqa: RUF012

    @classmethod
    def trainer_init(cls, init_info, *, client, source=None):
        engine = cls._registry[init_info.backend]()
        return engine.trainer_init(init_info, client=client, source=source)
