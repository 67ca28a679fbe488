"""Tensors in the safetensors format (https://github.com/huggingface/safetensors), read and written past the kernel.

    from nacre.safetensors import load_file, save_file, safe_open
    weights = load_file("/mnt/nacre/model.safetensors", device="cuda")

In place of the functions of the same names of `safetensors.torch` and `safetensors.numpy`. `framework`: "torch" ("pt"),
"numpy" ("np"), or None: PyTorch where it is installed, else NumPy.

The format: eight bytes of length, little-endian; so many bytes of JSON, {name: {"dtype", "shape", "data_offsets"}} with
"__metadata__", names to texts; the tensors' bytes, C order and little-endian, without holes. A header that says anything
else is a `SafetensorError`, which names what is wrong, before anything is allocated by its word.
"""

from __future__ import annotations

import json
import os
import struct
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from . import _files, _frameworks
from ._boxes import Range, rows_of
from ._durable import sync_directory
from ._files import Client, File, Path
from ._frameworks import SIZES, Framework, bytes_of, framework_of, temporary_name
from ._submit import Extent
from ._transfer import Part, read_all, write_all

__all__ = ["SafetensorError", "load_file", "save_file", "safe_open"]

MOST_HEADER = 100_000_000  # bytes, as other readers of the format have it
_FIRST_READ = 256 << 10  # bytes: mostly the whole header
_ALIGNMENT = 64  # bytes, of each tensor that is loaded


class SafetensorError(ValueError):
    """The file is no safetensors file, or tensors cannot be put into one."""


class TensorInfo(NamedTuple):
    """Of one tensor: safetensors' name of the type, its shape, and where its bytes are in the file."""

    dtype: str
    shape: Tuple[int, ...]
    begin: int
    end: int


class Header(NamedTuple):
    tensors: Dict[str, TensorInfo]  # in the order of their bytes
    metadata: Optional[Dict[str, str]]


# --- reading a header that anybody may have written ---


def _no_twice(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    made = dict(pairs)
    if len(made) == len(pairs):
        return made
    names = [name for name, _ in pairs]
    twice = next(name for name in names if names.count(name) > 1)
    raise SafetensorError(f"its header has {twice!r} twice")


def _parse_json(text: bytes) -> Dict[str, Any]:
    if not text.startswith(b"{"):
        raise SafetensorError(f"its header does not begin with '{{' but with {text[:8]!r}")
    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=_no_twice)
    except SafetensorError:
        raise
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        raise SafetensorError(f"its header is no JSON: {error}") from None
    return header  # an object, as it begins like one


def _check_metadata(value: Any) -> Optional[Dict[str, str]]:
    if value is None:
        return None
    if isinstance(value, dict) and all(isinstance(text, str) for text in value.values()):
        return value
    raise SafetensorError("its __metadata__ is not names and texts")


def _natural(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _check_tensor(name: str, value: Any, data: int, available: int) -> TensorInfo:
    if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
        raise SafetensorError(f"tensor {name!r} does not have dtype, shape and data_offsets, and nothing else")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in SIZES:
        raise SafetensorError(f"tensor {name!r} is of type {dtype!r}, which is not known")
    if not isinstance(shape, list) or not all(_natural(extent) for extent in shape):
        raise SafetensorError(f"tensor {name!r} has the shape {shape!r}")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(_natural(offset) for offset in offsets):
        raise SafetensorError(f"tensor {name!r} has the data_offsets {offsets!r}")
    begin, end = offsets
    if begin > end or end > available:
        raise SafetensorError(f"tensor {name!r} is at {begin} to {end} of the {available} bytes that follow the header")
    if end - begin != bytes_of(shape, dtype):
        raise SafetensorError(f"tensor {name!r} of {shape} {dtype} has {end - begin} bytes, not {bytes_of(shape, dtype)}")
    return TensorInfo(dtype, tuple(shape), data + begin, data + end)


def parse_header(text: bytes, size: int) -> Header:
    """Of a file of `size` bytes, whose header is `text`. SafetensorError names what is wrong."""
    raw = _parse_json(text)
    metadata = _check_metadata(raw.pop("__metadata__", None))
    data = 8 + len(text)
    found = [(name, _check_tensor(name, value, data, size - data)) for name, value in raw.items()]
    found.sort(key=lambda item: (item[1].begin, item[1].end))
    reached, before = data, None
    for name, tensor in found:
        if tensor.begin < reached:
            raise SafetensorError(f"tensors {before!r} and {name!r} overlap")
        if tensor.begin > reached:
            raise SafetensorError(f"{tensor.begin - reached} bytes before tensor {name!r} belong to none")
        reached, before = tensor.end, name
    if reached != size:
        raise SafetensorError(f"{size - reached} bytes behind the last tensor belong to none")
    return Header(dict(found), metadata)


def read_header(file: File) -> Header:
    """SafetensorError names the file and what is wrong with it."""
    try:
        size = file.size
        first = file.read(min(size, _FIRST_READ))
        if len(first) < 8:
            raise SafetensorError(f"it has {size} bytes, not even the header's length")
        (length,) = struct.unpack_from("<Q", first)
        if length > MOST_HEADER:
            raise SafetensorError(f"its header is said to have {length} bytes; {MOST_HEADER} are the most")
        if length > size - 8:
            raise SafetensorError(f"its header is said to have {length} bytes, the file has {size}")
        text = first[8 : 8 + length]
        if len(text) < length:
            text += file.read(length - len(text), 8 + len(text))
        if len(text) < length:
            raise SafetensorError("it has become shorter while it was read")
        return parse_header(text, size)
    except SafetensorError as error:
        raise SafetensorError(f"{file.name} is no safetensors file: {error}") from None


# --- loading ---


def _place(tensors: Mapping[str, TensorInfo]) -> Tuple[Dict[str, int], List[Tuple[int, int, int]], int]:
    """Where each tensor goes in one allocation, the runs (file offset, place, length) to read, and its size.

    Tensors that follow each other in the file stay so, as long as that leaves them aligned.
    """
    places: Dict[str, int] = {}
    runs: List[Tuple[int, int, int]] = []
    end = 0
    for name, tensor in tensors.items():
        place = -(-end // _ALIGNMENT) * _ALIGNMENT
        places[name], length = place, tensor.end - tensor.begin
        if length == 0:
            continue
        if runs and place == end and sum(runs[-1][::2]) == tensor.begin:
            runs[-1] = (runs[-1][0], runs[-1][1], runs[-1][2] + length)
        else:
            runs.append((tensor.begin, place, length))
        end = place + length
    return places, runs, end


def _load(file: File, tensors: Mapping[str, TensorInfo], device: Any, its: Framework) -> Dict[str, Any]:
    places, runs, size = _place(tensors)
    flat = its.allocate(size, device)
    # Views first: a type that the framework lacks is found before gigabytes are read.
    loaded = {name: its.view(flat, places[name], tensor.dtype, tensor.shape) for name, tensor in tensors.items()}
    if size:
        with file.client.register(flat) as buffer:
            read_all(Extent(file, buffer, offset, length, place) for offset, place, length in runs)
    return loaded


def load_file(
    filename: Path, device: Any = "cpu", *, framework: Optional[str] = None, client: Optional[Client] = None
) -> Dict[str, Any]:
    """All tensors of a file, by name, on the device ("cpu", "cuda", "cuda:1", 1, a torch.device).

    They are views of one allocation, whose bytes go back when the last of them does. Every byte is compared with its
    checksum. Errors: SafetensorError, nacre.Error; TypeError: the framework lacks a type.
    """
    its = _frameworks.framework(framework)
    with _files.open(filename, client=client) as file:
        return _load(file, read_header(file).tensors, device, its)


class safe_open:  # noqa: N801  # the name that programs know
    """A file of which some tensors, or parts of them, are wanted.

    with safe_open(path, framework="np") as file:
        file.keys(), file.metadata()
        file.get_tensor("a")
        file.get_slice("a")[10:20, ::2]
    """

    def __init__(
        self, filename: Path, framework: Optional[str] = None, device: Any = "cpu", *, client: Optional[Client] = None
    ) -> None:
        self._framework, self._device = _frameworks.framework(framework), device
        self._file = _files.open(filename, client=client)
        try:
            self._header = read_header(self._file)
        except BaseException:
            self._file.close()
            raise

    def keys(self) -> List[str]:
        return sorted(self._header.tensors)

    def offset_keys(self) -> List[str]:
        """In the order of their bytes."""
        return list(self._header.tensors)

    def metadata(self) -> Optional[Dict[str, str]]:
        return self._header.metadata

    def _info(self, name: str) -> TensorInfo:
        tensor = self._header.tensors.get(name)
        if tensor is None:
            raise SafetensorError(f"{self._file.name} has no tensor {name!r}")
        return tensor

    def get_tensor(self, name: str) -> Any:
        return _load(self._file, {name: self._info(name)}, self._device, self._framework)[name]

    def get_tensors(self, names: Sequence[str]) -> Dict[str, Any]:
        """Several in one go, in one allocation."""
        wanted = {name: self._info(name) for name in names}
        ordered = dict(sorted(wanted.items(), key=lambda item: item[1].begin))
        return _load(self._file, ordered, self._device, self._framework)

    def get_slice(self, name: str) -> "TensorSlice":
        return TensorSlice(self._file, self._info(name), self._device, self._framework)

    def __enter__(self) -> "safe_open":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())


class TensorSlice:
    """A tensor of which only what is indexed is read. Made by `safe_open.get_slice`."""

    def __init__(self, file: File, info: TensorInfo, device: Any, its: Framework) -> None:
        self._file, self._info, self._device, self._framework = file, info, device, its

    def get_shape(self) -> List[int]:
        return list(self._info.shape)

    def get_dtype(self) -> str:
        return self._info.dtype

    def __getitem__(self, index: Any) -> Any:
        """Integers, slices with steps of 1 or more, and one `...`."""
        box, shape = _box(index, self._info.shape)
        info = self._info
        flat = self._framework.allocate(bytes_of(shape, info.dtype), self._device)
        tensor = self._framework.view(flat, 0, info.dtype, shape)
        if bytes_of(shape, info.dtype):
            with self._file.client.register(flat) as buffer:
                read_all(
                    Extent(self._file, buffer, info.begin + part.offset, part.length, part.place, part.rows, part.stride)
                    for part in rows_of(info.shape, SIZES[info.dtype], box)
                )
        return tensor


def _range(index: Union[int, slice], extent: int, dimension: int) -> Range:
    if isinstance(index, slice):
        first, end, step = index.indices(extent)
        if step < 1:
            raise ValueError(f"a step of {step} in dimension {dimension}: it has to be 1 or more")
        return first, len(range(first, end, step)), step
    try:
        number = index.__index__()
    except AttributeError:
        raise TypeError(f"{index!r} in dimension {dimension}: only integers, slices and ... can index a slice") from None
    if not -extent <= number < extent:
        raise IndexError(f"{number} in dimension {dimension}, which has {extent}")
    return number % extent, 1, 1


def _box(index: Any, shape: Sequence[int]) -> Tuple[List[Range], List[int]]:
    """Returns the range to read of each dimension, and the shape of the result."""
    parts = list(index) if isinstance(index, tuple) else [index]
    ellipses = [i for i, part in enumerate(parts) if part is Ellipsis]
    if len(ellipses) > 1:
        raise IndexError("only one ... can be in an index")
    missing = len(shape) - (len(parts) - len(ellipses))
    if missing < 0:
        raise IndexError(f"{len(parts) - len(ellipses)} indices for {len(shape)} dimensions")
    at = ellipses[0] if ellipses else len(parts)
    parts[at : at + 1] = [slice(None)] * missing
    box = [_range(part, extent, i) for i, (part, extent) in enumerate(zip(parts, shape))]
    return box, [count for part, (_, count, _) in zip(parts, box) if isinstance(part, slice)]


# --- saving ---


def _header_text(infos: Mapping[str, Tuple[str, Tuple[int, ...]]], metadata: Optional[Mapping[str, str]]) -> bytes:
    header: Dict[str, Any] = {}
    if metadata is not None:
        _check_metadata(dict(metadata))
        header["__metadata__"] = dict(metadata)
    reached = 0
    for name, (dtype, shape) in infos.items():
        end = reached + bytes_of(shape, dtype)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [reached, end]}
        reached = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    text += b" " * (-len(text) % 8)
    if len(text) > MOST_HEADER:
        raise SafetensorError(f"the header would have {len(text)} bytes; {MOST_HEADER} are the most")
    return struct.pack("<Q", len(text)) + text


def _describe(tensors: Mapping[str, Any]) -> Tuple[Dict[str, Tuple[str, Tuple[int, ...]]], Dict[str, Any]]:
    """Type and shape, and the bytes, of each; the widest types first, so that all lie aligned."""
    infos, memories = {}, {}
    for name, tensor in tensors.items():
        if not isinstance(name, str) or name == "__metadata__":
            raise SafetensorError(f"{name!r} cannot be the name of a tensor")
        its = framework_of(tensor)
        try:
            infos[name], memories[name] = its.describe(tensor), its.bytes(tensor)
        except ValueError as error:
            raise SafetensorError(f"tensor {name!r}: {error}") from None
        except TypeError as error:
            raise TypeError(f"tensor {name!r}: {error}") from None
    ordered = sorted(infos, key=lambda name: (-SIZES[infos[name][0]], name))
    return {name: infos[name] for name in ordered}, memories


def save_file(
    tensors: Mapping[str, Any],
    filename: Path,
    metadata: Optional[Mapping[str, str]] = None,
    *,
    sync: bool = True,
) -> None:
    """Writes tensors, of the host or of GPUs, to a file on a mount, which is there when it is whole, in place of an older one.

    sync: it is durable when this returns. Tensors that share memory are each written. Errors: SafetensorError names a
    tensor that is not contiguous (PyTorch's; NumPy's are made so) or a bad name; TypeError: no type for it; OSError,
    also of a file that is in its place and may not be durable.
    """
    infos, memories = _describe(tensors)
    head = _header_text(infos, metadata)
    parts, offset = [Part(head, 0)], len(head)
    for name, (dtype, shape) in infos.items():
        parts.append(Part(memories[name], offset))
        offset += bytes_of(shape, dtype)
    path = os.fsdecode(filename)
    aside = temporary_name(path)
    try:
        with _files.open(aside, "xb") as file:
            write_all(file, parts)
            if sync:
                file.sync()
        os.replace(aside, path)
        if sync:
            sync_directory(os.path.dirname(path))
    except BaseException:
        try:
            os.unlink(aside)
        except OSError:
            pass  # it was not made, or is the other one now
        raise
