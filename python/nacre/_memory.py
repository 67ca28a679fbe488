"""From a Python object to an address: what may be read into and written from.

An object is taken in the first of these ways that it has:

1. a `torch.Tensor`, by its own methods (bfloat16 and float8, which neither protocol below carries everywhere);
2. `__cuda_array_interface__` (CuPy, Numba, ...);
3. the buffer protocol (bytearray, memoryview, NumPy, array, mmap);
4. DLPack (`__dlpack__`; JAX, TensorFlow, ...).

`Memory` holds what keeps the bytes in place: for the buffer protocol an export, so that a bytearray cannot be
resized meanwhile, for DLPack the capsule's tensor, else the object. What cannot be used is refused here, before
anything is sent.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import sys
from typing import Any, Callable, Optional

from . import _cuda, errors


def _nothing() -> None:
    pass


class Memory:
    """A run of bytes at an address.

    address, size: where, in bytes. readonly: it may not be read into. gpu: the number of the GPU, or None for the
    host. Thread-safe, as nothing of it changes until `release`.
    """

    __slots__ = ("address", "size", "readonly", "gpu", "what", "_keep", "_release", "_order")

    def __init__(
        self,
        address: int,
        size: int,
        *,
        readonly: bool,
        gpu: Optional[int],
        what: str,
        keep: Any,
        release: Optional[Callable[[], None]] = None,
        order: Optional[Callable[[], Callable[[], None]]] = None,
    ) -> None:
        self.address, self.size, self.readonly, self.gpu, self.what = address, size, readonly, gpu, what
        self._keep, self._release, self._order = keep, release, order

    def order(self) -> Callable[[], None]:
        """Returns a function that waits until the GPU has done what is queued for this memory now, in this thread's
        current stream. It may be called in another thread, whose current stream is another one.
        """
        return _nothing if self._order is None else self._order()

    def settle(self) -> None:
        self.order()()

    def release(self) -> None:
        """Lets go of the object. A second call does nothing."""
        release, self._release, self._keep = self._release, None, None
        if release is not None:
            release()

    def __del__(self) -> None:
        self.release()

    def require_writable(self) -> None:
        if self.readonly:
            raise errors.unusable(errno.EFAULT, f"{self.what} is read-only: it can be written to a file, not read into")


def _name(thing: Any) -> str:
    kind = type(thing)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def _not_contiguous(what: str) -> errors.UnusableMemory:
    return errors.unusable(errno.EINVAL, f"{what} is not contiguous: give its .contiguous() form, or one part after the other")


# --- torch ---


def _from_torch(torch: Any, tensor: Any) -> Memory:
    kind = tensor.device.type
    what = f"a torch tensor of {tuple(tensor.shape)} {tensor.dtype} on {tensor.device}"
    if kind not in ("cpu", "cuda"):
        raise errors.unusable(errno.ENOTSUP, f"{what}: only memory of the CPU and of CUDA's GPUs can be used")
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise errors.unusable(errno.EINVAL, f"{what} has the layout {tensor.layout}: only plain dense tensors are bytes in a row")
    if tensor.is_conj() or tensor.is_neg():
        raise errors.unusable(errno.EINVAL, f"{what} is a lazy conjugate or negative: its bytes are not its values; resolve it first")
    if not tensor.is_contiguous():
        raise _not_contiguous(what)
    return Memory(
        tensor.data_ptr(),
        tensor.numel() * tensor.element_size(),
        # A tensor that autograd watches must not be changed behind its back.
        readonly=tensor.requires_grad,
        gpu=tensor.device.index if kind == "cuda" else None,
        what=what + (", which requires grad (detach() it)," if tensor.requires_grad else ""),
        keep=tensor,
        order=(lambda: torch.cuda.current_stream(tensor.device).synchronize) if kind == "cuda" else None,
    )


# --- __cuda_array_interface__ ---


def _item_bytes(typestr: Any, what: str) -> int:
    try:
        return int(typestr[2:])
    except (TypeError, ValueError):
        raise errors.unusable(errno.EINVAL, f"{what} has the type {typestr!r}: its size is not known") from None


def _is_contiguous(shape: Any, strides: Any, item: int) -> bool:
    """Strides in bytes; None: C order. Dimensions of one element may have any."""
    if strides is None or 0 in shape:
        return True
    run = item
    for extent, stride in zip(reversed(shape), reversed(strides)):
        if extent != 1 and stride != run:
            return False
        run *= extent
    return True


def _bytes_of(shape: Any, item: int) -> int:
    size = item
    for extent in shape:
        size *= extent
    return size


def _from_cuda_array(thing: Any, interface: Any) -> Memory:
    what = f"a {_name(thing)}"
    try:
        shape, (address, readonly) = tuple(interface["shape"]), interface["data"]
        item = _item_bytes(interface["typestr"], what)
    except (KeyError, TypeError) as error:
        raise errors.unusable(errno.EINVAL, f"{what}: its __cuda_array_interface__ lacks {error}") from None
    what = f"a {_name(thing)} of {shape} {interface['typestr']}"
    if interface.get("mask") is not None:
        raise errors.unusable(errno.EINVAL, f"{what} has a mask, which is not written anywhere")
    if not _is_contiguous(shape, interface.get("strides"), item):
        raise _not_contiguous(what)
    # Version 2 of the interface has no stream: then it is CUDA's legacy default one, which orders all but few others.
    stream = interface.get("stream", _cuda.LEGACY_STREAM)
    gpu = _cuda.gpu_of(address) if address else None
    return Memory(
        address or 0,
        _bytes_of(shape, item),
        readonly=bool(readonly),
        gpu=gpu,
        what=what,
        keep=thing,
        order=None if stream is None or gpu is None else lambda: functools.partial(_cuda.synchronize, stream, gpu),
    )


# --- DLPack ---

_DL_CPU, _DL_CUDA, _DL_CUDA_HOST, _DL_CUDA_MANAGED = 1, 2, 3, 13
_DL_NAMES = {4: "OpenCL", 7: "Vulkan", 8: "Metal", 10: "ROCm", 14: "oneAPI"}


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype, _capsule_pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)


def _from_dlpack(thing: Any) -> Memory:
    what = f"a {_name(thing)}"
    kind, gpu = (int(part) for part in thing.__dlpack_device__())
    if kind not in (_DL_CPU, _DL_CUDA, _DL_CUDA_HOST, _DL_CUDA_MANAGED):
        named = _DL_NAMES.get(kind, f"DLPack's device type {kind}")
        raise errors.unusable(errno.ENOTSUP, f"{what} lies in memory of {named}: only memory of the CPU and of CUDA's GPUs can be used")
    on_device = kind in (_DL_CUDA, _DL_CUDA_MANAGED)
    # The producer orders its work before CUDA's legacy default stream, which is then waited for.
    capsule = thing.__dlpack__(stream=_cuda.LEGACY_STREAM) if on_device else thing.__dlpack__()
    # The capsule is not consumed: it stays with this Memory, and its own destructor gives the tensor back.
    tensor = _DLTensor.from_address(_capsule_pointer(capsule, b"dltensor"))
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    what = f"a {_name(thing)} of {shape}"
    bits = tensor.bits * tensor.lanes
    if bits % 8:
        raise errors.unusable(errno.EINVAL, f"{what} has elements of {bits} bits: no whole bytes")
    item = bits // 8
    strides = tuple(tensor.strides[i] * item for i in range(tensor.ndim)) if tensor.strides else None
    if not _is_contiguous(shape, strides, item):
        raise _not_contiguous(what)
    return Memory(
        (tensor.data or 0) + tensor.byte_offset,
        _bytes_of(shape, item),
        # This form of the capsule does not say so; an object that knows it has an attribute for it.
        readonly=not getattr(getattr(thing, "flags", None), "writeable", True),
        gpu=gpu if on_device else None,
        what=what,
        keep=(thing, capsule),
        order=(lambda: functools.partial(_cuda.synchronize, _cuda.LEGACY_STREAM, gpu)) if on_device else None,
    )


# --- the buffer protocol ---


class _PyBuffer(ctypes.Structure):
    _fields_ = [
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),  # a reference that PyBuffer_Release gives back
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.POINTER(ctypes.c_ssize_t)),
        ("strides", ctypes.POINTER(ctypes.c_ssize_t)),
        ("suboffsets", ctypes.POINTER(ctypes.c_ssize_t)),
        ("internal", ctypes.c_void_p),
    ]


_PYBUF_SIMPLE = 0
_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.restype, _get_buffer.argtypes = ctypes.c_int, (ctypes.py_object, ctypes.POINTER(_PyBuffer), ctypes.c_int)
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.restype, _release_buffer.argtypes = None, (ctypes.POINTER(_PyBuffer),)


def _from_buffer(thing: Any, view: memoryview) -> Memory:
    what = f"a {_name(thing)} of {view.nbytes} bytes"
    contiguous, readonly = view.c_contiguous, view.readonly
    view.release()
    if not contiguous:
        raise _not_contiguous(what)
    export = _PyBuffer()
    _get_buffer(thing, ctypes.byref(export), _PYBUF_SIMPLE)  # raises by itself
    return Memory(
        export.buf or 0,
        export.len,
        readonly=readonly,
        gpu=None,
        what=what,
        keep=thing,
        release=functools.partial(_release_buffer, ctypes.byref(export)),
    )


def memory_of(thing: Any) -> Memory:
    """The memory of an object. UnusableMemory says why it cannot be used; TypeError: it has none at all."""
    if isinstance(thing, Memory):
        return thing
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(thing, getattr(torch, "Tensor", ())):
        return _from_torch(torch, thing)
    interface = getattr(thing, "__cuda_array_interface__", None)
    if interface is not None:
        return _from_cuda_array(thing, interface)
    try:
        view = memoryview(thing)
    except (TypeError, ValueError, BufferError):
        view = None  # JAX arrays raise different ones
    if view is not None:
        return _from_buffer(thing, view)
    if hasattr(thing, "__dlpack__") and hasattr(thing, "__dlpack_device__"):
        return _from_dlpack(thing)
    raise TypeError(
        f"a {_name(thing)} has no memory: give something with the buffer protocol, DLPack or __cuda_array_interface__"
    )
