"""Names that last: a file's own fsync says nothing of the name that it is given afterwards."""

from __future__ import annotations

import errno
import os
from typing import List

from . import errors


def sync_directory(directory: str) -> None:
    """Returns when the names that were made, replaced and removed in it are durable.

    "" is the current one, as of os.path.dirname. Error: the names are there, and a loss of power may take them back.
    """
    directory = directory or "."
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    except OSError as error:
        words = f"{directory}: its names are not durable: {error.strerror}"
        raise errors.make(error.errno or errno.EIO, words) from None
    finally:
        os.close(fd)


def make_directory(path: str) -> None:
    """Makes it, and those above it that are missing, durably. It may be there already."""
    parents: List[str] = []
    above = os.path.abspath(path)
    while not os.path.isdir(above):
        above = os.path.dirname(above)
        parents.append(above)
    os.makedirs(path, exist_ok=True)
    for parent in parents:
        sync_directory(parent)
