"""The same for asyncio.

    async with await nacre.aio.open("/mnt/nacre/x") as file:
        await asyncio.gather(file.read_into(a, 0), file.read_into(b, len(a)))

A read is begun by libnacre's asynchronous call in the event loop's thread, and is with the servers before the first
`await`; threads of this package wait for its end (at most 16, which take turns). Opening, writing, syncing and closing
block in the library: they run in a pool of 8 threads.

A coroutine that is cancelled returns when nobody uses its memory any more: a read is cancelled in the library, a write
goes on to its end.
"""

from __future__ import annotations

import asyncio
import functools
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Iterable, List, Optional, Tuple

from . import _files, _submit
from ._buffers import Buffer
from ._files import Client, File, Path
from ._memory import memory_of
from ._reads import Read, Result
from ._submit import Extent

__all__ = ["File", "AsyncFile", "open", "readv", "wait"]

_pool: Optional[ThreadPoolExecutor] = None


def _executor() -> ThreadPoolExecutor:
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(max_workers=8, thread_name_prefix="nacre-aio")
    return _pool


def _after_fork() -> None:
    global _pool
    _pool = None


os.register_at_fork(after_in_child=_after_fork)


async def _finish(future: "asyncio.Future[Any]", cancel: Callable[[], None]) -> Any:
    """Its result; a cancellation is passed on and raised when the future has ended."""
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        if future.cancelled():
            raise
        cancel()
        while not future.done():
            try:
                await asyncio.wait([future])
            except asyncio.CancelledError:
                pass  # once is enough
        future.exception()  # it has been looked at
        raise


async def _run(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    future = asyncio.get_running_loop().run_in_executor(_executor(), functools.partial(function, *arguments, **named))
    return await _finish(future, lambda: None)


async def wait(read: Read, *, check: bool = True) -> List[Result]:
    """The results of a `Read` when it has ended. Cancelling this cancels the read."""
    loop = asyncio.get_running_loop()
    ended: "asyncio.Future[None]" = loop.create_future()

    def tell() -> None:
        if not ended.done():
            ended.set_result(None)

    def ended_elsewhere() -> None:
        try:
            loop.call_soon_threadsafe(tell)
        except RuntimeError:
            pass  # the loop was closed before: nobody waits

    read.on_end(ended_elsewhere)
    await _finish(ended, read.cancel)
    return read.result(check=check)


async def readv(extents: Iterable[Extent], *, timeout: Optional[float] = None, stream: Any = None, check: bool = True) -> List[Result]:
    """As `nacre.readv`."""
    return await wait(_submit.submit(extents, timeout=timeout, stream=stream), check=check)


class AsyncFile:
    """As `nacre.File`, with coroutines. Made by `nacre.aio.open`."""

    def __init__(self, file: File) -> None:
        #: The file beneath, which can be used as well.
        self.file = file

    async def size(self) -> int:
        return await _run(lambda: self.file.size)

    async def read_into(
        self,
        memory: Any,
        offset: int = 0,
        length: Optional[int] = None,
        *,
        memory_offset: int = 0,
        timeout: Optional[float] = None,
        stream: Any = None,
    ) -> int:
        extent = self.file.extent(memory, offset, length, memory_offset=memory_offset)
        return (await readv([extent], timeout=timeout, stream=stream))[0].bytes

    async def read(self, length: Optional[int] = None, offset: int = 0, *, timeout: Optional[float] = None) -> bytes:
        if length is None:
            length = max(0, await self.size() - offset)
        memory = bytearray(length)
        count = await self.read_into(memory, offset, timeout=timeout)
        return bytes(memoryview(memory)[:count])

    async def readv(
        self, extents: Iterable[Tuple[Any, int]], *, timeout: Optional[float] = None, check: bool = True
    ) -> List[Result]:
        return await readv([self.file.extent(memory, offset) for memory, offset in extents], timeout=timeout, check=check)

    async def write(self, memory: Any, offset: int = 0, length: Optional[int] = None, *, memory_offset: int = 0) -> int:
        # The current stream is this thread's.
        found = memory._memory if isinstance(memory, Buffer) else memory_of(memory)
        settled = found.order()
        source = memory if isinstance(memory, Buffer) else found

        def write() -> int:
            settled()
            return self.file.write(source, offset, length, memory_offset=memory_offset, settle=False)

        return await _run(write)

    async def sync(self) -> None:
        await _run(self.file.sync)

    async def close(self) -> None:
        await _run(self.file.close)

    async def __aenter__(self) -> "AsyncFile":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


async def open(path: Path, mode: str = "rb", *, client: Optional[Client] = None, permissions: int = 0o666) -> AsyncFile:
    """As `nacre.open`."""
    return AsyncFile(await _run(_files.open, path, mode, client=client, permissions=permissions))
