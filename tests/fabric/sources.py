"""A process that exposes tensors until it is told otherwise."""

from processes import Process, Start

SCRIPT = """
import sys
import torch
import tensorbus
from tensorbus import empty, share_

endpoint = tensorbus.Endpoint(name="source")
tensors = eval(sys.argv[1])
descriptor = endpoint.expose(tensors)
print(descriptor.hex())
for line in sys.stdin:
    if line.strip() == "release":
        endpoint.release(descriptor)
    elif line.strip() == "overwrite":
        for tensor in tensors:
            tensor.fill_(-7)
    print("done")
"""


class Source:
    def __init__(self, start_python: Start, tensors: str) -> None:
        self.process: Process = start_python(SCRIPT, tensors)
        self.descriptor = bytes.fromhex(self.process.line())

    def tell(self, command: str) -> None:
        self.process.tell(command)
        assert self.process.line() == "done"
