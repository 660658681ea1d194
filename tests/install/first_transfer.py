"""A trainer publishes a version, an engine in another process pulls it and checks every element.

Needs nothing but what `pip install tensorbus` brings; the proof of a fresh installation.
"""

import subprocess
import sys

import numpy as np
from tensorbus import TensorBusClient
from tensorbus.kvstore import StoreServer

SHAPE = (512, 256)


def weights() -> np.ndarray:
    return np.arange(SHAPE[0] * SHAPE[1], dtype=np.float32).reshape(SHAPE)


def engine(url: str) -> None:
    held = {"weight": np.zeros(SHAPE, np.float32)}
    with TensorBusClient.embedded(url) as client:
        version = client.link("engine", "trainer").pull("policy", held, timeout=30)
    np.testing.assert_array_equal(held["weight"], weights())
    print(f"version {version} has arrived, every element is right")


def trainer() -> None:
    with StoreServer(port=0) as store, TensorBusClient.embedded(store.url) as client:
        client.link("trainer").publish("policy", {"weight": weights()})
        subprocess.run([sys.executable, __file__, store.url], check=True, timeout=60)


if __name__ == "__main__":
    engine(sys.argv[1]) if len(sys.argv) > 1 else trainer()
