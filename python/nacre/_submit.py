"""Many reads in one go: nacre_readv and its kin."""

from __future__ import annotations

import ctypes
import errno
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from . import _library, _reads, errors
from ._buffers import Buffers, natural
from ._reads import Read, Result

if TYPE_CHECKING:
    from ._files import File


class Extent(NamedTuple):
    """One read among many: a run of bytes, or rows of equal length. All numbers are bytes.

    `memory` is a Buffer or anything that has memory. Rows begin `file_stride` apart in the file and `buffer_stride`
    apart in the memory (0: `length`); they come in the file's order and do not overlap.
    """

    file: "File"
    memory: Any
    #: Of the first row in the file.
    offset: int = 0
    #: Of each row; None: as much as fits behind `memory_offset`.
    length: Optional[int] = None
    #: Of the first row in the memory.
    memory_offset: int = 0
    rows: int = 1
    file_stride: int = 0
    buffer_stride: int = 0


def _stream_number(stream: Any) -> Optional[int]:
    """A CUDA stream as torch (cuda_stream), CuPy (ptr) or an integer has it."""
    if stream is None or isinstance(stream, int):
        return stream
    for attribute in ("cuda_stream", "ptr"):
        number = getattr(stream, attribute, None)
        if isinstance(number, int):
            return number
    raise TypeError(f"{stream!r} is no CUDA stream: give one of torch's or CuPy's, or its address")


def fill(raw: _library.ExtentStruct, extent: Extent, buffers: Buffers, reads: bool = True) -> bool:
    """False: nothing is to be read, or written."""
    buffer = buffers.get(extent.file.client, extent.memory, reads)
    size = 0 if buffer is None else buffer.size
    memory_offset = natural("memory_offset", extent.memory_offset)
    if extent.length is None and memory_offset > size:
        raise ValueError(f"memory_offset is {memory_offset}, beyond the memory's {size} bytes")
    length = size - memory_offset if extent.length is None else natural("length", extent.length)
    if buffer is None:
        if length or memory_offset:
            raise ValueError(f"{length} bytes at {memory_offset} of memory that has none")
        extent.file._its()
        return False
    raw.struct_size = ctypes.sizeof(_library.ExtentStruct)
    raw.file, raw.buffer = extent.file._its().id, buffer._its().id
    raw.offset, raw.length, raw.buffer_offset = natural("offset", extent.offset), length, memory_offset
    raw.rows = natural("rows", extent.rows)
    raw.file_stride = natural("file_stride", extent.file_stride)
    raw.buffer_stride = natural("buffer_stride", extent.buffer_stride)
    return True


class _Submitted(Read):
    """With the empty extents put back where they were."""

    def __init__(self, pending: Optional[_reads.Pending], is_there: Sequence[bool]) -> None:
        super().__init__(pending)
        self._is_there = is_there

    def result(self, timeout: Optional[float] = None, *, check: bool = True) -> List[Result]:
        results = iter(super().result(timeout, check=check))
        return [next(results) if there else Result(0, "", "none", None) for there in self._is_there]


class _Places:
    """Sees to it that no two extents of one operation read into the same bytes: each would spoil the other's checksums."""

    def __init__(self) -> None:
        self._ends: Dict[int, int] = {}
        self._taken: Dict[int, List[Tuple[int, int]]] = {}
        self._ascend, self._gaps = True, False

    def add(self, raw: _library.ExtentStruct) -> None:
        rows = max(raw.rows, 1)
        begin = raw.buffer_offset
        end = begin + (rows - 1) * (raw.buffer_stride or raw.length) + raw.length
        self._taken.setdefault(raw.buffer, []).append((begin, end))
        # Rows with gaps may be interleaved with others': libnacre checks those of one extent.
        self._ascend = self._ascend and begin >= self._ends.get(raw.buffer, 0)
        self._ends[raw.buffer] = end
        self._gaps = self._gaps or (rows > 1 and raw.buffer_stride > raw.length)

    def check(self) -> None:
        if self._ascend or self._gaps:
            return
        for places in self._taken.values():
            places.sort()
            for (begin, end), (after, other) in zip(places, places[1:]):
                if after < end and other > after and end > begin:
                    raise errors.make(
                        errno.EINVAL, f"two extents read into the same memory: bytes {begin} to {end} and {after} to {other} of a buffer"
                    )


def submit(
    extents: Iterable[Extent], *, timeout: Optional[float] = None, stream: Any = None, settle: bool = True
) -> Read:
    """Begins many reads in one go, as few requests as they need, and returns at once.

    The extents may be of any files of one client; none may read into another's memory. `timeout`: seconds from now; what is not there by then has TimedOut.
    `stream`: a CUDA stream, in whose order the bytes are read: after what was queued in it before, and what is queued
    behind it waits for them (nacre_read_on_stream(3)). Without one, GPU memory is read into when the work that its
    owner has queued on the current stream is over, for which this call waits; settle=False: the caller has seen to it.
    """
    extents = list(extents)
    order = _stream_number(stream)
    buffers, places = Buffers(settle and order is None), _Places()
    raw = (_library.ExtentStruct * len(extents))()
    try:
        filled, is_there = 0, []
        for extent in extents:
            is_there.append(fill(raw[filled], extent, buffers))
            if is_there[-1]:
                places.add(raw[filled])
                filled += 1
        places.check()
        if filled == 0:
            return _Submitted(None, is_there)
        given = (_library.ExtentStruct * filled).from_buffer(raw)
        pending = _reads.begin(given, buffers.all, buffers.temporary, timeout, order)
    except BaseException:
        buffers.release()
        raise
    return _Submitted(pending, is_there)


def readv(
    extents: Iterable[Extent], *, timeout: Optional[float] = None, stream: Any = None, check: bool = True
) -> List[Result]:
    """Reads them and waits for it: `submit(...).result(check=check)`. Ctrl-C cancels it."""
    return wait(submit(extents, timeout=timeout, stream=stream), check)


def wait(read: Read, check: bool) -> List[Result]:
    try:
        return read.result(check=check)
    except BaseException:
        if not read.done():  # Ctrl-C
            read.cancel()
            read.wait()
        raise
