"""Queues: hundreds of reads and writes under way, each of which ends by itself (nacre_queue)."""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import errno
import itertools
import os
import threading
import time
import weakref
from collections import deque
from ctypes import byref
from typing import Any, Deque, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from . import _library, _reads, errors
from ._buffers import Buffers
from ._files import Client
from ._owned import Owned
from ._submit import Extent, fill

_SLICE = 0.1  # seconds for which a wait holds off Ctrl-C
_MOST = 512  # completions taken in one go


class Completion(NamedTuple):
    """How one request went."""

    #: The caller's own, as it was given with the request.
    tag: Any
    #: Less than asked for only at the end of the file; 0 after an error.
    bytes: int
    #: None, or what went wrong: in libnacre's words for the first of those that end together, else in the system's.
    error: Optional[errors.Error]


class Queue(Owned):
    """Many reads and writes under way at once. Thread-safe.

        with nacre.Queue(file.client, 256) as queue:
            queue.submit((file.extent(memory, offset), tag) for ...)
            for done in queue.reap(32): ...

    `depth`: how many requests may be submitted and not yet reaped. Cheaper than a `Read` for each: what is submitted in one
    call shares requests to the servers, and who waits for many is woken once. Requests are done in any order.
    Memory is kept until its request is reaped, or the queue is closed.
    """

    def __init__(self, client: Client, depth: int = 256) -> None:
        super().__init__()
        self.client, self.depth = client, depth
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._kept: Dict[int, Tuple[Any, Buffers]] = {}  # of what libnacre has: its tag and its memory
        self._done_lock = threading.Lock()  # never held while somebody waits
        self._done: Deque[Completion] = deque()  # taken from libnacre, and not yet returned
        handle = _library.Handle()
        _library.check(_library.library().nacre_queue_open(client._its(), depth, byref(handle)))
        self._handle = handle
        _open_ones.add(self)

    def __len__(self) -> int:
        """How many are submitted and not yet reaped."""
        return len(self._kept) + len(self._done)

    def submit(
        self, requests: Iterable[Tuple[Extent, Any]], *, write: bool = False, timeout: Optional[float] = None, settle: bool = True
    ) -> None:
        """Begins pairs (extent, tag), all or none of them, and returns at once.

        The extents are runs, not rows, of files of the queue's client. write: from the memory to the file. timeout: seconds
        from now; what is not done by then has `TimedOut`. settle: as of `nacre.submit`. Error with EAGAIN: there is no room for all.
        """
        pairs = [(extent, tag) for extent, tag in requests]
        with self._lock:
            room = self.depth - len(self)
            if len(pairs) > room:
                raise errors.make(errno.EAGAIN, f"{len(pairs)} requests, and the queue has room for {room}: reap first")
            prepared: List[Buffers] = []
            try:
                raw = (_library.RequestStruct * max(1, len(pairs)))()
                for place, (extent, _) in zip(raw, pairs):
                    prepared.append(Buffers(settle))
                    _fill_request(place, extent, prepared[-1], write)
                self._begin(raw, pairs, prepared, timeout)
            except BaseException:
                for buffers in prepared:
                    buffers.release()
                raise

    def _begin(self, raw: Any, pairs: List[Tuple[Extent, Any]], prepared: List[Buffers], timeout: Optional[float]) -> None:
        numbers = list(itertools.islice(self._numbers, len(pairs)))
        for place, number in zip(raw, numbers):
            place.user_data = number
        options = _library.IoOptions(ctypes.sizeof(_library.IoOptions), _reads.nanoseconds(timeout))
        taken = ctypes.c_size_t()
        for number, (_, tag), buffers in zip(numbers, pairs, prepared):
            self._kept[number] = (tag, buffers)
        code = _library.library().nacre_queue_submit(self._its(), raw, len(pairs), byref(options), byref(taken))
        if code != 0:
            for number in numbers:
                del self._kept[number]
            _library.check(code)

    def reap(self, least: int = 1, timeout: Optional[float] = None, most: int = _MOST) -> List[Completion]:
        """What is done, when that is `least` of them, or all that are under way; fewer after `timeout` seconds (None: never)."""
        least = min(least, most)
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = _SLICE if deadline is None else min(_SLICE, max(0.0, deadline - time.monotonic()))
            have = len(self._done)
            is_all = self._take_done(max(0, least - have), left, max(0, most - have))
            is_over = deadline is not None and time.monotonic() >= deadline
            given = self._give(0 if is_all or is_over else least, most)
            if given is not None:
                return given

    def _take_done(self, least: int, seconds: float, most: int) -> bool:
        """Takes what is done from libnacre into `_done`. Whether that is all there is, and less than `least`."""
        raw = (_library.CompletionStruct * max(1, most))()
        count, words = ctypes.c_size_t(), ""
        try:
            code = _library.library().nacre_queue_reap(self._its(), least, int(seconds * 1e9), raw, most, byref(count))
            if code == 0:
                words = _library.last_words()
            elif code != errno.EAGAIN:
                _library.check(code)
        finally:
            # Ctrl-C is raised when the call returns: what it gave is nobody else's.
            self._keep(raw[: count.value], words)
        return code == 0 and count.value < least

    def _keep(self, taken: Sequence[_library.CompletionStruct], words: str) -> None:
        """`words`: for the first of them that failed."""
        with self._done_lock:
            for one in taken:
                self._done.append(self._completed(one.user_data, one.result, words))
                if one.result < 0:
                    words = ""

    def _completed(self, number: int, result: int, words: str) -> Completion:
        tag, buffers = self._kept.pop(number)
        buffers.release()
        if result >= 0:
            return Completion(tag, result, None)
        return Completion(tag, 0, errors.make(-result, words or os.strerror(-result)))

    def _give(self, least: int, most: int) -> Optional[List[Completion]]:
        """None: there are not so many."""
        with self._done_lock:
            if len(self._done) < least:
                return None
            return [self._done.popleft() for _ in range(min(most, len(self._done)))]

    async def areap(self, least: int = 1) -> List[Completion]:
        """`reap` for asyncio: the event loop waits, no thread does. One coroutine at a time."""
        fd = ctypes.c_int(-1)
        _library.check(_library.library().nacre_queue_event_fd(self._its(), byref(fd)))
        loop = asyncio.get_running_loop()
        try:
            while True:
                self._take_done(0, 0, _MOST)
                given = self._give(least if self._kept else 0, max(least, _MOST))
                if given is not None:
                    return given
                ready = asyncio.Event()
                loop.add_reader(fd.value, ready.set)
                try:
                    await ready.wait()
                finally:
                    loop.remove_reader(fd.value)
        finally:
            os.close(fd.value)

    def cancel(self) -> None:
        """Asks all that is under way to end early, with `Cancelled`; `reap` gives them."""
        _library.check(_library.library().nacre_queue_cancel(self._its(), None))

    def close(self) -> None:
        """Ends the reads, waits for the writes, and lets go of the memory. What was not reaped is lost. Again: does nothing."""
        handle = self._take()
        if handle is not None:
            _library.library().nacre_queue_close(handle)  # EBADF: its client was closed, which closed it
        with self._lock:
            kept, self._kept = self._kept, {}
        with self._done_lock:
            self._done.clear()
        for _, buffers in kept.values():
            buffers.release()

    def __repr__(self) -> str:
        return f"<nacre.Queue of {self.depth}>"


_open_ones: "weakref.WeakSet[Queue]" = weakref.WeakSet()


def _close_all() -> None:
    """At exit: no server may write into memory that the interpreter gives back."""
    for queue in list(_open_ones):
        try:
            queue.cancel()
        except errors.Error:
            pass  # it was closed, or its client
        queue.close()


atexit.register(_close_all)
os.register_at_fork(after_in_child=lambda: _open_ones.clear())


def _fill_request(place: Any, extent: Extent, buffers: Buffers, write: bool) -> None:
    if extent.rows != 1:
        raise ValueError("a queue takes runs of bytes, not rows: give each row as an extent, or use readv")
    raw = _library.ExtentStruct()
    if not fill(raw, extent, buffers, not write):
        raise errors.unusable(errno.EINVAL, "memory of no bytes: there is nothing to read or write")
    place.struct_size = ctypes.sizeof(_library.RequestStruct)
    place.operation = _library.REQUEST_WRITE if write else _library.REQUEST_READ
    place.file, place.offset = raw.file, raw.offset
    place.buffer, place.buffer_offset, place.length = raw.buffer, raw.buffer_offset, raw.length
