"""Reads under way.

A `Read` is what `submit` gives: one nacre_readv_async with what it reads into. Its memory is kept until nobody writes
there any more, whatever becomes of the `Read` object: `_under_way` holds it, `_Waiters` end it.

A small pool of threads waits for those that somebody awaits. The reads themselves are all with the servers at once;
the pool only tells of ends. (nacre_future_notify would tell of one by an eventfd, of which libnacre keeps a duplicate
for each read: more than a process may have descriptors can be under way.)
"""

from __future__ import annotations

import atexit
import ctypes
import errno
import os
import queue
import threading
import time
from ctypes import byref
from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Set

from . import _library, errors

_SLICE = 0.1  # seconds for which a wait holds off Ctrl-C
_PATIENCE_AT_EXIT = 5.0  # seconds


class Result(NamedTuple):
    """How one extent went."""

    #: Bytes that were read: less than asked for only at the end of the file; 0 after an error.
    bytes: int
    #: The way that they took: "shm", "tcp", "shm+gpu", "rdma+gpu", "tcp+staging", ...; "mds": a small file.
    path: str
    #: The side that compared them with their checksums: "host", "device", or "none".
    verified: str
    #: None, or what went wrong.
    error: Optional[errors.Error]


def nanoseconds(timeout: Optional[float]) -> int:
    """For nacre_io_options: 0 is none there."""
    if timeout is None:
        return 0
    if not timeout > 0:
        raise ValueError(f"a timeout of {timeout} s: it has to be more than 0, or None")
    return max(1, int(timeout * 1e9))


def _make_result(raw: _library.ResultStruct) -> Result:
    error = None
    if raw.error != 0:
        error = errors.make(raw.error, raw.message.decode("utf-8", "replace"))
    return Result(raw.bytes, raw.path.decode(), _library.VERIFICATION_NAMES[raw.verification], error)


class Pending:
    """A future of the library, with the buffers that it reads into. Thread-safe."""

    def __init__(self, handle: _library.Handle, count: int, buffers: Sequence[Any], temporary: Sequence[Any]) -> None:
        self._handle, self._count = handle, count
        self._buffers, self._temporary = buffers, temporary
        self._lock = threading.Lock()
        self._results: Optional[List[Result]] = None
        self._error: Optional[errors.Error] = None
        self._pid = os.getpid()
        with _under_way_lock:
            _under_way.add(self)

    def wait(self, seconds: Optional[float]) -> bool:
        """Whether it ends within that time; None: for ever. May be interrupted by signals, and goes on then."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while self._results is None:
            left = _SLICE if deadline is None else min(_SLICE, max(0.0, deadline - time.monotonic()))
            number = _library.library().nacre_future_wait(self._handle, int(left * 1e9))
            if number == 0:
                self._finish()
            elif number != errno.EAGAIN:
                error = _library.last_error(number)
                with self._lock:  # another thread may just have taken the results
                    if self._results is None:
                        raise error
            elif deadline is not None and time.monotonic() >= deadline:
                return False
        return True

    def cancel(self) -> None:
        if self._results is None:
            _library.library().nacre_future_cancel(self._handle)  # an error: it has just ended

    def _finish(self) -> None:
        with self._lock:
            if self._results is not None:
                return
            raw = (_library.ResultStruct * self._count)()
            raw[0].struct_size = ctypes.sizeof(_library.ResultStruct)
            number = _library.library().nacre_future_results(self._handle, raw, self._count)
            if number != 0:
                self._error = _library.last_error(number)
            results = [_make_result(one) for one in raw]
            _library.library().nacre_future_free(self._handle)
            for buffer in self._temporary:
                buffer.release()
            self._buffers = self._temporary = ()
            self._results = results
        with _under_way_lock:
            _under_way.discard(self)

    def results(self, check: bool) -> List[Result]:
        """It has ended. With check the first error is raised, with the results in it."""
        results = self._results
        assert results is not None
        if check and self._error is not None:
            self._error.results = list(results)
            raise self._error
        return results

    @property
    def done(self) -> bool:
        return self._results is not None


_under_way: Set[Pending] = set()
_under_way_lock = threading.Lock()


class Read:
    """Reads under way, as a future. Thread-safe.

    A `Read` that is dropped before its end is cancelled; its memory is kept until nobody writes there.
    """

    def __init__(self, pending: Optional[Pending]) -> None:
        self._pending = pending  # None: nothing was to be read

    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return self._pending is None or self._pending.wait(0)

    def wait(self, timeout: Optional[float] = None) -> bool:
        """Whether it ends within `timeout` seconds (None: waits for ever). It goes on either way."""
        return self._pending is None or self._pending.wait(timeout)

    def cancel(self) -> None:
        """Asks it to end early, with `Cancelled` for what is not there yet. `wait` says when it has ended."""
        if self._pending is not None:
            self._pending.cancel()

    def result(self, timeout: Optional[float] = None, *, check: bool = True) -> List[Result]:
        """The result of each extent, when it has ended.

        Raises the first error among them, whose `results` has them all; with check=False none is raised.
        TimedOut: it has not ended within `timeout` seconds, and goes on.
        """
        if self._pending is None:
            return []
        if not self._pending.wait(timeout):
            raise errors.make(errno.ETIMEDOUT, f"the reads are still under way after {timeout} s")
        return self._pending.results(check)

    def on_end(self, callback: Callable[[], None]) -> None:
        """Calls it once, when the read has ended, in a thread of this package's. It must be quick and not raise."""
        if self._pending is None:
            callback()
        else:
            waiters.watch(self._pending, callback)

    def __del__(self) -> None:
        pending = self._pending
        if pending is None or pending.done or pending._pid != os.getpid():
            return
        try:
            pending.cancel()
            waiters.watch(pending, lambda: None)
        except Exception:
            pass  # the interpreter is ending: _end_all has seen to it


class _Waiters:
    """Threads that wait for reads; made when they are needed, gone after a while without work.

    With more reads than threads each thread takes turns among them, so that reads which wait for a dead server hold
    up nobody for long.
    """

    MOST = 16
    IDLE = 10.0  # seconds

    def __init__(self) -> None:
        self._queue: "queue.SimpleQueue[Any]" = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._idle = 0

    def watch(self, pending: Pending, callback: Callable[[], None]) -> None:
        with self._lock:
            self._queue.put((pending, callback))
            if self._idle >= self._queue.qsize() or self._threads == self.MOST:
                return
            self._threads += 1
        threading.Thread(target=self._run, name="nacre-wait", daemon=True).start()

    def _take(self) -> Any:
        with self._lock:
            self._idle += 1
        try:
            return self._queue.get(timeout=self.IDLE)
        except queue.Empty:
            return None
        finally:
            with self._lock:
                self._idle -= 1

    def _run(self) -> None:
        while True:
            item = self._take()
            with self._lock:
                if item is None and self._queue.empty():
                    self._threads -= 1
                    return
            if item is None:
                continue
            pending, callback = item
            if self._wait(pending):
                callback()
            else:
                self._queue.put(item)

    def _wait(self, pending: Pending) -> bool:
        """False: not yet, and others wait for a thread."""
        while not pending.wait(_SLICE / 2):
            if self._threads == self.MOST and not self._queue.empty():
                return False
        return True


waiters = _Waiters()


def _end_all() -> None:
    """At exit: no server may write into memory that the interpreter gives back."""
    with _under_way_lock:
        left = list(_under_way)
    for pending in left:
        pending.cancel()
    deadline = time.monotonic() + _PATIENCE_AT_EXIT
    for pending in left:
        if not pending.wait(max(0.0, deadline - time.monotonic())):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(pending))  # its memory is never given back


def _after_fork() -> None:
    """The child has none of the threads, and may not use the library (nacre.h)."""
    global waiters, _under_way_lock
    waiters, _under_way_lock = _Waiters(), threading.Lock()
    for pending in _under_way:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(pending))
    _under_way.clear()


atexit.register(_end_all)
os.register_at_fork(after_in_child=_after_fork)


def begin(
    extents: "ctypes.Array[_library.ExtentStruct]",
    buffers: Sequence[Any],
    temporary: Sequence[Any],
    timeout: Optional[float],
    stream: Optional[int],
) -> Pending:
    """Begins them. After an error nothing is under way, and the temporary buffers are still the caller's."""
    options = _library.IoOptions(ctypes.sizeof(_library.IoOptions), nanoseconds(timeout))
    handle = _library.Handle()
    library = _library.library()
    if stream is None:
        number = library.nacre_readv_async(extents, len(extents), byref(options), byref(handle))
    else:
        number = library.nacre_read_on_stream(stream, extents, len(extents), byref(options), byref(handle))
    _library.check(number)
    return Pending(handle, len(extents), buffers, temporary)
