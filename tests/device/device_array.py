"""Tensors in the memory of a CUDA device without any framework: what a framework would give.

The driver is whatever ``libcuda.so.1`` the process finds, in tests the stand-in.
"""

from __future__ import annotations

import ctypes as c
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

NON_BLOCKING = 1
NO_TIMING = 2
DLPACK_CUDA = 2
TYPES = {"f2": (2, 16), "f4": (2, 32), "f8": (2, 64), "i8": (0, 64), "u1": (1, 8)}
BFLOAT16 = (4, 16)


class _Tensor(c.Structure):
    _fields_ = (
        ("data", c.c_void_p), ("device_type", c.c_int32), ("device_id", c.c_int32),
        ("dims", c.c_int32), ("code", c.c_uint8), ("bits", c.c_uint8), ("lanes", c.c_uint16),
        ("shape", c.POINTER(c.c_int64)), ("strides", c.POINTER(c.c_int64)),
        ("byte_offset", c.c_uint64),
    )  # fmt: skip


_Deleter = c.CFUNCTYPE(None, c.c_void_p)


class _Versioned(c.Structure):
    _fields_ = (
        ("major", c.c_uint32), ("minor", c.c_uint32), ("context", c.c_void_p),
        ("deleter", _Deleter), ("flags", c.c_uint64), ("tensor", _Tensor),
    )  # fmt: skip


_kept: dict[int, Any] = {}


@_Deleter
def _drop(address: int) -> None:
    _kept.pop(address, None)


_new_capsule = c.pythonapi.PyCapsule_New
_new_capsule.restype = c.py_object
_new_capsule.argtypes = [c.c_void_p, c.c_char_p, c.c_void_p]


class Driver:
    """The calls of a user, in the primary context of a device."""

    def __init__(self, device: int) -> None:
        self._library = c.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        context = c.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", c.byref(context), device)
        self._context = context

    def call(self, name: str, *arguments: Any) -> None:
        newest = getattr(self._library, f"{name}_v2", None) or getattr(self._library, name)
        result = newest(*arguments)
        assert result == 0, f"{name} gives {result}"

    def enter(self) -> None:
        self.call("cuCtxSetCurrent", self._context)

    def new_stream(self) -> int:
        self.enter()
        stream = c.c_void_p()
        self.call("cuStreamCreate", c.byref(stream), NON_BLOCKING)
        return int(stream.value or 0)

    def allocate(self, size: int) -> int:
        self.enter()
        pointer = c.c_uint64()
        self.call("cuMemAlloc", c.byref(pointer), c.c_size_t(size))
        return pointer.value

    def make_wait(self, waiting: int, stream: int) -> None:
        """What ``waiting`` is given from now on comes after what ``stream`` has been given."""
        self.enter()
        event = c.c_void_p()
        self.call("cuEventCreate", c.byref(event), NO_TIMING)
        self.call("cuEventRecord", event, c.c_void_p(stream))
        self.call("cuStreamWaitEvent", c.c_void_p(waiting), event, 0)

    def write(self, pointer: int, source: npt.NDArray[Any], stream: int) -> None:
        """Nobody waits for it."""
        self.enter()
        self.call(
            "cuMemcpyHtoDAsync", c.c_uint64(pointer), c.c_void_p(source.ctypes.data),
            c.c_size_t(source.nbytes), c.c_void_p(stream),
        )  # fmt: skip

    def read(self, pointer: int, size: int, stream: int) -> npt.NDArray[np.uint8]:
        self.enter()
        found = np.empty(size, np.uint8)
        self.call(
            "cuMemcpyDtoHAsync", c.c_void_p(found.ctypes.data), c.c_uint64(pointer),
            c.c_size_t(size), c.c_void_p(stream),
        )  # fmt: skip
        self.call("cuStreamSynchronize", c.c_void_p(stream))
        return found


class DeviceArray:
    """What a numpy array, of positive strides, is on a device. Writes go to a stream of its own, as
    a framework's do, and nobody waits for them."""

    def __init__(
        self,
        host: npt.NDArray[Any],
        device: int = 0,
        *,
        dlpack_type: tuple[int, int] | None = None,
    ) -> None:
        self.device = device
        self.driver = Driver(device)
        self.stream = self.driver.new_stream()
        self._other_stream = self.driver.new_stream()
        self.shape, self.dtype = host.shape, host.dtype
        self.byte_strides = host.strides
        self.dlpack_type = dlpack_type or TYPES[host.dtype.str[1:]]
        reach = sum((n - 1) * s for n, s in zip(host.shape, host.strides, strict=True))
        self.bytes = reach + host.itemsize
        self.pointer = self.driver.allocate(self.bytes)
        self._written: list[npt.NDArray[Any]] = []
        self.write(host)

    def write(self, host: npt.NDArray[Any]) -> None:
        image = np.zeros(self.bytes, np.uint8)
        self._view(image)[...] = host
        self._written.append(image)  # the copy may come late
        self.driver.write(self.pointer, image, self.stream)

    def finish(self) -> None:
        """Waits for what was written."""
        self.driver.enter()
        self.driver.call("cuStreamSynchronize", c.c_void_p(self.stream))

    def read(self) -> npt.NDArray[Any]:
        """By a stream that knows nothing of others."""
        return self._view(self.driver.read(self.pointer, self.bytes, self._other_stream)).copy()

    def _view(self, image: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
        return np.ndarray(self.shape, self.dtype, image.data, strides=self.byte_strides)

    def __dlpack_device__(self) -> tuple[int, int]:
        return DLPACK_CUDA, self.device

    def __dlpack__(self, *, stream: int | None = None, max_version: Any = None) -> Any:
        if stream is not None and stream != -1:
            self.driver.make_wait(stream, self.stream)
        dims = len(self.shape)
        shape = (c.c_int64 * dims)(*self.shape)
        strides = (c.c_int64 * dims)(*(s // self.dtype.itemsize for s in self.byte_strides))
        made = _Versioned(major=1, minor=0, deleter=_drop)
        made.tensor = _Tensor(
            self.pointer, DLPACK_CUDA, self.device, dims, *self.dlpack_type, 1, shape, strides, 0
        )
        _kept[c.addressof(made)] = (made, shape, strides)
        return _new_capsule(c.addressof(made), b"dltensor_versioned", None)


_FromObject = c.PYFUNCTYPE(c.c_int, c.py_object, c.POINTER(_Tensor))
_CurrentStream = c.PYFUNCTYPE(c.c_int, c.c_int32, c.c_int32, c.POINTER(c.c_void_p))


class _ExchangeApi(c.Structure):
    _fields_ = (
        ("major", c.c_uint32), ("minor", c.c_uint32), ("previous", c.c_void_p),
        ("allocate", c.c_void_p), ("managed_from_object", c.c_void_p),
        ("managed_to_object", c.c_void_p), ("tensor_from_object", _FromObject),
        ("current_stream", _CurrentStream),
    )  # fmt: skip


@_FromObject
def _from_object(array: FrameworkArray, result: Any) -> int:
    result[0] = array.tensor
    return 0


@_CurrentStream
def _current_stream(device_type: int, device: int, result: Any) -> int:
    assert device_type == DLPACK_CUDA
    result[0] = FrameworkArray.current_streams[device]
    return 0


_api = _ExchangeApi(
    major=1, minor=3, tensor_from_object=_from_object, current_stream=_current_stream
)


class FrameworkArray(DeviceArray):
    """The same of a framework that, as torch, has DLPack's exchange API and a current stream for
    each device, which all its arrays are written on."""

    current_streams: ClassVar[dict[int, int]] = {}
    __dlpack_c_exchange_api__ = _new_capsule(c.addressof(_api), b"dlpack_exchange_api", None)

    def __init__(self, host: npt.NDArray[Any], device: int = 0) -> None:
        super().__init__(host, device)
        dims = len(self.shape)
        self._shape = (c.c_int64 * dims)(*self.shape)
        self._strides = (c.c_int64 * dims)(*(s // self.dtype.itemsize for s in self.byte_strides))
        self.tensor = _Tensor(
            self.pointer, DLPACK_CUDA, device, dims, *self.dlpack_type, 1, self._shape,
            self._strides, 0,
        )  # fmt: skip

    def write(self, host: npt.NDArray[Any]) -> None:
        if self.device not in self.current_streams:
            self.current_streams[self.device] = self.driver.new_stream()
        self.stream = self.current_streams[self.device]
        super().write(host)


class CudaArray:
    """The same without DLPack."""

    def __init__(self, array: DeviceArray) -> None:
        self.array = array

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.array.shape,
            "typestr": self.array.dtype.str,
            "data": (self.array.pointer, False),
            "strides": self.array.byte_strides,
            "stream": self.array.stream,
            "version": 3,
        }
