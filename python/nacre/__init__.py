"""Files of a Nacre filesystem in Python's, NumPy's and GPUs' memory, past the kernel and its caches.

    import nacre
    with nacre.open("/mnt/nacre/x") as file:
        file.read_into(tensor, offset=4096)

`nacre.aio` is the same for asyncio, `nacre.safetensors` loads and saves models, `nacre.torch` has a dataset, a loader
that reads ahead into GPU memory, and storage for torch.distributed.checkpoint. Sizes and offsets are bytes, times
seconds. Errors: `nacre.Error`, an OSError (nacre.errors). docs/python.md and libnacre(3) explain more.
"""

from __future__ import annotations

from ._buffers import Buffer
from ._files import Capabilities, Client, File, disconnect, open
from ._library import version as library_version
from ._queue import Completion, Queue
from ._reads import Read, Result
from ._submit import Extent, readv, submit
from .errors import Cancelled, Denied, Error, Exists, IsDirectory, NotFound, Refused, TimedOut, UnusableMemory

__version__ = "0.1.0"

__all__ = [
    "Buffer",
    "Cancelled",
    "Capabilities",
    "Client",
    "Completion",
    "Denied",
    "Error",
    "Exists",
    "Extent",
    "File",
    "IsDirectory",
    "NotFound",
    "Queue",
    "Read",
    "Refused",
    "Result",
    "TimedOut",
    "UnusableMemory",
    "disconnect",
    "library_version",
    "open",
    "readv",
    "submit",
]
