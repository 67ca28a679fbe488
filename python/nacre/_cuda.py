"""Calls of CUDA's driver by this package itself: which GPU's memory an address is, and waiting for a stream's work."""

from __future__ import annotations

import ctypes
import errno
import os
from typing import Optional

from . import errors

LEGACY_STREAM, _PER_THREAD_STREAM = 1, 2
_INVALID_CONTEXT = 201
_DEVICE_ORDINAL = 9  # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL

_driver: Optional[ctypes.CDLL] = None


def _library() -> ctypes.CDLL:
    global _driver
    if _driver is None:
        name = os.environ.get("NACRE_CUDA_LIBRARY") or "libcuda.so.1"
        try:
            _driver = ctypes.CDLL(name)
        except OSError as error:
            raise errors.unusable(errno.ENODEV, f"memory of a GPU was given, but CUDA's driver cannot be opened: {error}") from None
    return _driver


def _in_primary_context(gpu: int, stream: int) -> int:
    driver = _library()
    context = ctypes.c_void_p()
    failed = driver.cuInit(0) or driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), gpu)
    if failed:
        return failed
    try:
        failed = driver.cuCtxPushCurrent_v2(context)
        if failed:
            return failed
        failed = driver.cuStreamSynchronize(ctypes.c_void_p(stream))
        driver.cuCtxPopCurrent_v2(ctypes.byref(context))
        return failed
    finally:
        driver.cuDevicePrimaryCtxRelease_v2(gpu)


def gpu_of(address: int) -> int:
    """The number of the GPU whose memory it is. UnusableMemory: it is none's."""
    attribute, ordinal = ctypes.c_int(_DEVICE_ORDINAL), ctypes.c_int(-1)
    place = ctypes.c_void_p(ctypes.addressof(ordinal))
    driver = _library()
    failed = driver.cuInit(0) or driver.cuPointerGetAttributes(
        1, ctypes.byref(attribute), ctypes.byref(place), ctypes.c_uint64(address)
    )
    if failed or ordinal.value < 0:
        raise errors.unusable(errno.EFAULT, f"{address:#x} is said to be in memory of a GPU, but CUDA knows nothing of it")
    return ordinal.value


def synchronize(stream: int, gpu: int) -> None:
    """Waits until what was put into the stream is done. Of CUDA's default streams (1 and 2), those of the GPU's primary
    context are meant, which is that of CUDA's runtime."""
    if stream in (LEGACY_STREAM, _PER_THREAD_STREAM):
        failed = _in_primary_context(gpu, stream)
    else:
        failed = _library().cuStreamSynchronize(ctypes.c_void_p(stream))
        if failed == _INVALID_CONTEXT:
            failed = _in_primary_context(gpu, stream)
    if failed:
        raise errors.unusable(errno.EIO, f"CUDA answered {failed} when stream {stream:#x} of GPU {gpu} was waited for")
