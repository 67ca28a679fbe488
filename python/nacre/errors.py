"""The library's errors, as exceptions.

Every error of the library is a `nacre.Error`, which is an `OSError`: `errno` has the number, `strerror` the
library's own words. Where Python has a class for the number (`FileNotFoundError`, `PermissionError`, ...) the
exception is one of those too, so both ways to catch it work.
"""

from __future__ import annotations

import errno as _errno
from typing import Dict, List, Optional, Type

__all__ = ["Error", "NotFound", "Exists", "Denied", "IsDirectory", "TimedOut", "Cancelled", "Refused", "UnusableMemory"]


class Error(OSError):
    """An error of libnacre, or one that was found before libnacre was asked."""

    #: Of `readv` and `Read.result`: how each extent went, the successful ones too.
    results: "Optional[List[object]]" = None


class NotFound(Error, FileNotFoundError):
    """ENOENT."""


class Exists(Error, FileExistsError):
    """EEXIST."""


class Denied(Error, PermissionError):
    """EACCES; EPERM, also of a process that was forked after the library was first used."""


class IsDirectory(Error, IsADirectoryError):
    """EISDIR."""


class TimedOut(Error, TimeoutError):
    """ETIMEDOUT: not done in the time that was given; nobody writes into the memory any more."""


class Cancelled(Error):
    """ECANCELED: the read was cancelled, or its client closed; nobody writes into the memory any more."""


class Refused(Error, ConnectionRefusedError):
    """ECONNREFUSED: no server answers there."""


class UnusableMemory(Error, ValueError):
    """The object that was given as memory cannot be used; nothing was sent."""


_CLASSES: Dict[int, Type[Error]] = {
    _errno.ENOENT: NotFound,
    _errno.EEXIST: Exists,
    _errno.EACCES: Denied,
    _errno.EPERM: Denied,
    _errno.EISDIR: IsDirectory,
    _errno.ETIMEDOUT: TimedOut,
    _errno.ECANCELED: Cancelled,
    _errno.ECONNREFUSED: Refused,
}


def make(number: int, text: str) -> Error:
    """The exception for an errno value and the words for it."""
    return _CLASSES.get(number, Error)(number, text)


def unusable(number: int, text: str) -> UnusableMemory:
    return UnusableMemory(number, text)
