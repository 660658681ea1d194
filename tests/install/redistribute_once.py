"""Two ranks that hold rows in float32 hand them to two that hold columns in float16: every cast,
copy and plan of one process, for machines that are only emulated."""

import platform

import numpy as np
import tensorbus
from tensorbus import Layout, Shard

whole = np.arange(64 * 48, dtype=np.float32).reshape(64, 48) / 7
rows = {rank: whole[32 * rank : 32 * rank + 32].copy() for rank in range(2)}
columns = {rank: np.zeros((64, 24), np.float16) for rank in range(2)}
tensorbus.redistribute(Layout((2,), [Shard(0)]), rows, Layout((2,), [Shard(1)]), columns)
np.testing.assert_array_equal(np.hstack([columns[0], columns[1]]), whole.astype(np.float16))
print(f"{platform.machine()}: redistributed, every element is right")
