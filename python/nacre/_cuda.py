"""The two things that this package asks of CUDA's driver: that a stream's work is over, by cuStreamSynchronize."""

from __future__ import annotations

import ctypes
import os
from typing import Optional

from . import errors

_INVALID_CONTEXT = 201

_driver: Optional[ctypes.CDLL] = None


def _library() -> ctypes.CDLL:
    global _driver
    if _driver is None:
        name = os.environ.get("NACRE_CUDA_LIBRARY") or "libcuda.so.1"
        try:
            _driver = ctypes.CDLL(name)
        except OSError as error:
            raise errors.unusable(19, f"memory of a GPU was given, but CUDA's driver cannot be opened: {error}") from None
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


def synchronize(stream: int, gpu: int) -> None:
    """Waits until what was put into the stream (as an integer; 1 and 2 are CUDA's two default streams) is done.

    Where the thread has no context of its own the GPU's primary context is used, which is that of CUDA's runtime.
    """
    failed = _library().cuStreamSynchronize(ctypes.c_void_p(stream))
    if failed == _INVALID_CONTEXT:
        failed = _in_primary_context(gpu, stream)
    if failed:
        raise errors.unusable(5, f"CUDA answered {failed} when stream {stream:#x} of GPU {gpu} was waited for")
