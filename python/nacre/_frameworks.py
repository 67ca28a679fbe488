"""NumPy and PyTorch behind one face: what `nacre.safetensors` and `nacre.torch` ask of them.

A framework allocates flat bytes on a device, shows a part of them as a tensor of some type and shape, and says what a
tensor is. Types have the names of the safetensors format.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from typing import Any, Callable, Dict, Optional, Protocol, Sequence, Tuple

#: Bytes of an element.
SIZES: Dict[str, int] = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
    "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4,
    "U64": 8, "I64": 8, "F64": 8, "C64": 8,
}  # fmt: skip

_NUMPY = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "F16": "float16", "U32": "uint32",
    "I32": "int32", "F32": "float32", "U64": "uint64", "I64": "int64", "F64": "float64", "C64": "complex64",
}  # fmt: skip
#: The types that NumPy has only with the package ml_dtypes.
_ML_DTYPES = {"BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu"}
_TORCH = {**_NUMPY, **_ML_DTYPES}


def bytes_of(shape: Sequence[int], dtype: str) -> int:
    count = SIZES[dtype]
    for extent in shape:
        count *= extent
    return count


class Framework(Protocol):
    name: str

    def allocate(self, size: int, device: Any) -> Any:
        """`size` bytes, not zeroed, in a row. ValueError: no such device."""

    def view(self, flat: Any, begin: int, dtype: str, shape: Sequence[int]) -> Any:
        """A tensor that shares the bytes from `begin` on."""

    def describe(self, tensor: Any) -> Tuple[str, Tuple[int, ...]]:
        """Its type and shape. TypeError: no tensor of this framework, or of a type that the format has not."""

    def bytes(self, tensor: Any) -> Any:
        """Something with its bytes as memory, in C order and little-endian. ValueError: they do not lie so."""


class NumPy:
    name = "numpy"

    def __init__(self) -> None:
        self._numpy = importlib.import_module("numpy")

    def _dtype(self, name: str) -> Any:
        if name in _NUMPY:
            return self._numpy.dtype(_NUMPY[name])
        try:
            return self._numpy.dtype(getattr(importlib.import_module("ml_dtypes"), _ML_DTYPES[name]))
        except (ImportError, AttributeError):
            raise TypeError(f"NumPy has no {name}: install ml_dtypes, or load with framework='torch'") from None

    def allocate(self, size: int, device: Any) -> Any:
        if str(device) != "cpu":
            raise ValueError(f"device {device!r}: NumPy's arrays are on the 'cpu'; use framework='torch'")
        return self._numpy.empty(size, self._numpy.uint8)

    def view(self, flat: Any, begin: int, dtype: str, shape: Sequence[int]) -> Any:
        return flat[begin : begin + bytes_of(shape, dtype)].view(self._dtype(dtype)).reshape(tuple(shape))

    def describe(self, tensor: Any) -> Tuple[str, Tuple[int, ...]]:
        if not isinstance(tensor, (self._numpy.ndarray, self._numpy.generic)):
            raise TypeError(f"a {type(tensor).__name__} is no NumPy array")
        for name, other in _TORCH.items():
            if tensor.dtype.name == other:
                return name, tuple(tensor.shape)
        raise TypeError(f"the safetensors format has no type for NumPy's {tensor.dtype}")

    def bytes(self, tensor: Any) -> Any:
        array = self._numpy.ascontiguousarray(tensor)
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        return array.reshape(-1).view(self._numpy.uint8)


class Torch:
    name = "torch"

    def __init__(self) -> None:
        self._torch = torch_module("framework='torch'")

    def _dtype(self, name: str) -> Any:
        dtype = getattr(self._torch, _TORCH[name], None)
        if dtype is None:
            raise TypeError(f"torch {self._torch.__version__} has no {_TORCH[name]}")
        return dtype

    def allocate(self, size: int, device: Any) -> Any:
        return self._torch.empty(size, dtype=self._torch.uint8, device=f"cuda:{device}" if isinstance(device, int) else device)

    def view(self, flat: Any, begin: int, dtype: str, shape: Sequence[int]) -> Any:
        size = bytes_of(shape, dtype)
        if size == 0:
            return self._torch.empty(tuple(shape), dtype=self._dtype(dtype), device=flat.device)
        return flat[begin : begin + size].view(self._dtype(dtype)).view(tuple(shape))

    def describe(self, tensor: Any) -> Tuple[str, Tuple[int, ...]]:
        if not isinstance(tensor, self._torch.Tensor):
            raise TypeError(f"a {type(tensor).__name__} is no torch tensor")
        for name, other in _TORCH.items():
            if tensor.dtype == getattr(self._torch, other, None):
                return name, tuple(tensor.shape)
        raise TypeError(f"the safetensors format has no type for torch's {tensor.dtype}")

    def bytes(self, tensor: Any) -> Any:
        if not tensor.is_contiguous():
            raise ValueError("it is not contiguous: save its .contiguous() form")
        return tensor.detach()


def torch_module(what: str) -> Any:
    """PyTorch. ImportError names what needs it."""
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise ImportError(f"{what} needs PyTorch, which is not installed here ({error})") from error


_NAMES: Dict[str, Callable[[], Framework]] = {"numpy": NumPy, "np": NumPy, "torch": Torch, "pt": Torch}


def framework(name: Optional[str]) -> Framework:
    """By name: "torch" ("pt") or "numpy" ("np"). None: PyTorch where it is installed, else NumPy."""
    if name is None:
        name = "torch" if importlib.util.find_spec("torch") is not None else "numpy"
    if name not in _NAMES:
        raise ValueError(f"framework {name!r}: one of {', '.join(_NAMES)}")
    return _NAMES[name]()


def framework_of(tensor: Any) -> Framework:
    """Whose tensor it is."""
    module = type(tensor).__module__.partition(".")[0]
    if module != "torch" and any(base.__module__.partition(".")[0] == "torch" for base in type(tensor).__mro__):
        module = "torch"  # torch.nn.Parameter's relatives in other packages
    return framework("torch" if module == "torch" else "numpy")


def temporary_name(path: str) -> str:
    """Beside the file, for what is renamed to it when it is whole."""
    directory, name = os.path.split(path)
    return os.path.join(directory, f".{name}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
