"""A weight transfer backend and a model loader for vLLM (0.28 to 0.32).

    vllm serve MODEL --weight-transfer-config '{"backend": "tensorbus"}'
    vllm serve MODEL --load-format tensorbus --model-loader-extra-config '{"store": "..."}'

vLLM finds :func:`register` by its entry point. The first line lets a trainer send its weights to a
running engine (``tensorbus.vllm.trainer``, ``tensorbus.trl``), the second starts an engine with the
weights that a living trainer has published (``link.publish``), and needs none on a disk.

Trainers publish versions, engines pull them. In mode ``staged``, the default, a worker first pulls
all of an update and only then touches its model, which takes the memory of the whole model once
more, in the host. In mode ``direct`` it pulls into the model's parameters, in mode ``auto`` into
those that can be filled so.
"""

from __future__ import annotations

import logging

logger = logging.getLogger("tensorbus")

# Minor versions of vLLM whose interfaces are those that this package fills, and those of them
# that the tests of this package have run.
KNOWN = range(28, 33)
RUN = (32,)


def register() -> None:
    """Called by vLLM in every one of its processes, where an exception would end it."""
    try:
        _register()
    except Exception as error:
        logger.warning("tensorbus is not available to vLLM: %s: %s", type(error).__name__, error)


def _register() -> None:
    import vllm

    known = _known_minor(str(vllm.__version__))
    if known is None:
        logger.warning(
            "tensorbus is not available to vLLM: it knows 0.%d to 0.%d, and this is %s",
            KNOWN.start, KNOWN.stop - 1, vllm.__version__,
        )  # fmt: skip
        return
    if known not in RUN:
        logger.info("tensorbus was not tested with vLLM %s", vllm.__version__)
    from vllm.distributed.weight_transfer import factory
    from vllm.model_executor import model_loader

    engines = factory.WeightTransferEngineFactory
    if "tensorbus" not in engines._registry:
        engines.register_engine("tensorbus", "tensorbus.vllm.engine", "TensorBusEngine")
    trainers = factory.WeightTransferTrainerFactory
    if "tensorbus" not in trainers._registry:
        trainers.register_engine("tensorbus", "tensorbus.vllm.trainer", "TensorBusTrainerEngine")
    if "tensorbus" not in model_loader._LOAD_FORMAT_TO_MODEL_LOADER:
        from tensorbus.vllm.loader import TensorBusModelLoader

        model_loader.register_model_loader("tensorbus")(TensorBusModelLoader)


def _known_minor(version: str) -> int | None:
    major, _, rest = version.partition(".")
    minor = rest.partition(".")[0]
    is_known = major == "0" and minor.isdecimal() and int(minor) in KNOWN
    return int(minor) if is_known else None
