"""Names, arguments and defaults of the seed; ours are keyword only."""

import inspect

import pytest
import tensorbus
import tensorbus.agent
import tensorbus.bootstrap
import tensorbus.client
from tensorbus import BatchHandler, TensorBusAgent, TensorBusClient

REQUIRED = inspect.Parameter.empty
BLOCKING = {"blocking": True, "timeout": 30.0}
TRANSFER = {"transfer_type": REQUIRED, "blocking": False, "timeout": 30.0}


@pytest.mark.proves("B1.9", "B1.7", "B1.8")
@pytest.mark.parametrize(
    ("function", "positional", "ours"),
    [
        (
            TensorBusClient.__init__,
            {"agent_rank": REQUIRED, "lmdb_command_queue_path": None}
            | {"agent_state_lmdb_path": None, "connection_timeout": 30.0},
            {"namespace": None, "copy_threads": None},
        ),
        (
            TensorBusClient.embedded,
            {"store": None, "rank": None, "namespace": None},
            {"connection_timeout": 30.0, "bind": None, "ports": (0, 0), "copy_threads": None}
            | {"metrics": None},
        ),
        (
            TensorBusClient.init_pair,
            dict.fromkeys(
                ["pair_name", "local_name", "remote_name", "expected_world_size"], REQUIRED
            )
            | {"device_mesh": None, "placements": None}
            | BLOCKING,
            {},
        ),
        (
            TensorBusClient.register_tensors,
            {"batch_id": REQUIRED, "tensors": REQUIRED, "bucket_size": None, "timeout": 30.0},
            {"role": None, "verify": None},
        ),
        (
            TensorBusClient.transfer,
            {"batch_id": REQUIRED} | TRANSFER,
            {"role": None, "stream": None},
        ),
        (
            TensorBusClient.query_transfer_signal,
            {"batch_id": REQUIRED} | BLOCKING,
            {"sync_round": None, "role": None},
        ),
        (TensorBusClient.close, {}, {}),
        (BatchHandler.transfer, TRANSFER, {"role": None}),
        (BatchHandler.query_transfer_signal, BLOCKING, {"sync_round": None, "role": None}),
        (BatchHandler.close, BLOCKING, {}),
        (
            tensorbus.bootstrap_client,
            {"path_naming_fn": None, "connection_timeout": 30.0},
            {},
        ),
        (tensorbus.setup_ptrace, {"pid": None}, {}),
        (
            tensorbus.client.generate_semaphore_name,
            {"command_type": REQUIRED, "context_id": REQUIRED},
            {},
        ),
        (
            TensorBusAgent.__init__,
            dict.fromkeys(
                [
                    "rank",
                    "world_size",
                    "store_host",
                    "store_port",
                    "lmdb_command_queue_path",
                    "lmdb_state_path",
                ],
                REQUIRED,
            )
            | {"store_timeout": 3600.0, "store_backend": "tcp", "store_namespace": None},
            {},
        ),
        (TensorBusAgent.run, {}, {}),
        (TensorBusAgent.step, {}, {}),
        (TensorBusAgent.close, {"destroy": True}, {}),
    ],
    ids=lambda value: getattr(value, "__qualname__", ""),
)
def test_the_signature_is_the_seeds(function, positional, ours):
    parameters = dict(inspect.signature(function).parameters)
    parameters.pop("self", None)
    keyword_only = {
        name: parameter.default
        for name, parameter in parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }
    others = {
        name: parameter.default
        for name, parameter in parameters.items()
        if parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    }
    assert list(others.items()) == list(positional.items())
    assert keyword_only == ours


@pytest.mark.proves("B1.5", "B1.6")
def test_handlers_can_be_built_as_the_seed_builds_them():
    parameters = list(inspect.signature(BatchHandler).parameters)
    assert parameters[:3] == ["client", "batch_id", "pair_names"]
    for module in (tensorbus.client, tensorbus.bootstrap, tensorbus.agent):
        assert module.logger.name == "tensorbus"


@pytest.mark.proves("B1.3", "B3.16")
def test_errors_are_what_users_catch():
    posix_ipc = pytest.importorskip("posix_ipc")
    assert issubclass(tensorbus.BusyError, TimeoutError)
    assert issubclass(tensorbus.BusyError, posix_ipc.BusyError)
    assert issubclass(tensorbus.PeerLostError, RuntimeError)
    assert issubclass(tensorbus.QueueFullError, RuntimeError)
    assert tensorbus.PeerLostError("gone").readers == {}
