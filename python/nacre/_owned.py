"""The base of the library's objects: a handle that is closed once."""

from __future__ import annotations

import errno
import os
import sys
import threading
from typing import Callable, Optional, TypeVar

from . import _library, errors

_Self = TypeVar("_Self", bound="Owned")


class Owned:
    """Something of the library's with a handle: closed once, by `close`, `with` or the garbage collector."""

    _handle: Optional[_library.Handle]

    def __init__(self) -> None:
        self._handle = None
        self._closing = threading.Lock()
        self._pid = os.getpid()

    @property
    def closed(self) -> bool:
        return self._handle is None

    def close(self) -> None:
        raise NotImplementedError

    def _its(self) -> _library.Handle:
        handle = self._handle
        if handle is None:
            raise errors.make(errno.EBADF, f"{self!r} is closed")
        return handle

    def _take(self) -> Optional[_library.Handle]:
        """Returns the handle to close. None: it was closed before, or belongs to the process that this one was forked from."""
        with self._closing:
            handle, self._handle = self._handle, None
            return handle if self._pid == os.getpid() else None

    def _forgotten(self) -> None:
        """The garbage collector closes it."""

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # At the end of the interpreter the library closes what is left by itself, in bounded time.
    def __del__(self, _ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if getattr(self, "_handle", None) is None or _ending():
            return
        self._forgotten()
        try:
            self.close()
        except OSError:
            pass  # nobody is there to hear it; sync() is how to be sure
