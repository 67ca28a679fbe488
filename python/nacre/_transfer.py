"""Many parts of files to and from memory at once: what models and checkpoints are made of."""

from __future__ import annotations

import errno
import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Iterable, Iterator, List, NamedTuple, Sequence

from . import errors
from ._buffers import Buffer
from ._files import File
from ._memory import memory_of
from ._submit import Extent, readv

_MOST_EXTENTS = 16384  # in one call
_WRITES_AT_ONCE = 8
_WRITE_PART = 32 << 20  # bytes


def wanted(extent: Extent) -> int:
    """Bytes; its length is given."""
    return (extent.length or 0) * max(1, extent.rows)


def read_all(extents: Iterable[Extent]) -> None:
    """Reads them. Each has a length; a file that is too short for one is an EIO that names it."""
    iterator = iter(extents)
    while True:
        some: List[Extent] = list(itertools.islice(iterator, _MOST_EXTENTS))
        if not some:
            return
        for extent, result in zip(some, readv(some)):
            if result.bytes == wanted(extent):
                continue
            raise errors.make(
                errno.EIO,
                f"{extent.file.name}: {result.bytes} bytes at {extent.offset} instead of {wanted(extent)}: "
                "the file has become shorter",
            )


class Part(NamedTuple):
    """All bytes of a memory, to be written at `offset`."""

    memory: Any
    offset: int


def _runs(file: File, parts: Iterable[Part]) -> Iterator[Any]:
    for part in parts:
        found = memory_of(part.memory)
        size = found.size
        found.settle()  # in this thread, whose current stream the caller's is
        if size == 0:
            continue
        if size <= _WRITE_PART:
            yield (found, part.offset, size, 0, None)
            continue
        buffer = file.client.register(found)
        for begin in range(0, size, _WRITE_PART):
            yield (buffer, part.offset + begin, min(_WRITE_PART, size - begin), begin, buffer)


def write_all(file: File, parts: Sequence[Part]) -> None:
    """Writes them, several at once. The first error is raised when none is under way any more."""
    buffers: List[Buffer] = []
    with ThreadPoolExecutor(max_workers=_WRITES_AT_ONCE, thread_name_prefix="nacre-write") as pool:
        futures = []
        try:
            for memory, offset, length, begin, buffer in _runs(file, parts):
                if buffer is not None and (not buffers or buffers[-1] is not buffer):
                    buffers.append(buffer)
                futures.append(pool.submit(file.write, memory, offset, length, memory_offset=begin, settle=False))
            for future in futures:
                future.result()
        finally:
            for future in futures:
                future.cancel()
            pool.shutdown(wait=True)
            for buffer in buffers:
                buffer.release()
