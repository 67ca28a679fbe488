"""Clients and files: the objects of nacre.h, with Python's lifetimes."""

from __future__ import annotations

import ctypes
import errno
import os
import threading
import warnings
from ctypes import byref
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Tuple, Union

from . import _library, errors
from ._buffers import Buffer, Buffers, natural
from ._memory import memory_of
from ._owned import Owned
from ._reads import Result
from ._submit import Extent, readv

_MODES = {
    "r": os.O_RDONLY,
    "r+": os.O_RDWR,
    "w": os.O_WRONLY | os.O_CREAT | os.O_TRUNC,
    "w+": os.O_RDWR | os.O_CREAT | os.O_TRUNC,
    "x": os.O_WRONLY | os.O_CREAT | os.O_EXCL,
    "x+": os.O_RDWR | os.O_CREAT | os.O_EXCL,
    "a": os.O_WRONLY | os.O_CREAT | os.O_APPEND,
    "a+": os.O_RDWR | os.O_CREAT | os.O_APPEND,
}
_WRITE_STEP = 64 << 20  # bytes, after which Ctrl-C is looked for

Path = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]


class Capabilities(NamedTuple):
    """The features that a client has, and the paths to its servers."""

    #: Whether reads may end in GPU memory.
    reads_to_device: bool
    #: Whether `stream=` works.
    streams: bool
    #: GPUs that this process sees.
    gpus: int
    #: The mechanism of GPU memory, or why there is none.
    device: str
    #: A line for each server spoken to so far.
    paths: Tuple[str, ...]


class File(Owned):
    """A file of a Nacre filesystem. Made by `nacre.open` and `Client.open`. Thread-safe.

    There is no position: every call says where. A read is short only at the end of the file.
    """

    def __init__(self, client: "Client", path: Path, mode: str, permissions: int) -> None:
        super().__init__()
        self.client, self.name, self.mode = client, os.fsdecode(path), mode
        flags = _MODES.get(mode.replace("b", "", 1))
        if flags is None:
            raise ValueError(f"mode {mode!r}: one of {', '.join(name + 'b' for name in _MODES)}; there is no text mode")
        self._appends = bool(flags & os.O_APPEND)
        handle = _library.Handle()
        _library.check(
            _library.library().nacre_file_open(client._its(), os.fsencode(path), flags, permissions, byref(handle))
        )
        self._handle = handle

    @property
    def size(self) -> int:
        """In bytes, as the servers know it now."""
        size = ctypes.c_uint64()
        _library.check(_library.library().nacre_file_size(self._its(), byref(size)))
        return size.value

    def extent(
        self,
        memory: Any,
        offset: int = 0,
        length: Optional[int] = None,
        *,
        memory_offset: int = 0,
        rows: int = 1,
        file_stride: int = 0,
        buffer_stride: int = 0,
    ) -> Extent:
        """An `Extent` of this file, for `readv` and `submit`."""
        return Extent(self, memory, offset, length, memory_offset, rows, file_stride, buffer_stride)

    def read_into(
        self,
        memory: Any,
        offset: int = 0,
        length: Optional[int] = None,
        *,
        memory_offset: int = 0,
        timeout: Optional[float] = None,
        stream: Any = None,
    ) -> int:
        """Reads from `offset` of the file into the memory; returns how many bytes.

        `memory`: a Buffer, or anything with the buffer protocol, DLPack or __cuda_array_interface__: contiguous,
        writable, on the host or a GPU. `length`: bytes; None: as many as fit behind `memory_offset`.
        UnusableMemory: nothing was sent. With a stream it is waited for all the same: `submit` does not.
        """
        extent = self.extent(memory, offset, length, memory_offset=memory_offset)
        return readv([extent], timeout=timeout, stream=stream)[0].bytes

    def read(self, length: Optional[int] = None, offset: int = 0, *, timeout: Optional[float] = None) -> bytes:
        """Reads up to `length` bytes (None: to the end of the file). A copy more than `read_into`."""
        if length is None:
            length = max(0, self.size - natural("offset", offset))
        memory = bytearray(natural("length", length))
        count = self.read_into(memory, offset, timeout=timeout)
        return bytes(memoryview(memory)[:count])

    def readv(
        self, extents: Iterable[Tuple[Any, int]], *, timeout: Optional[float] = None, check: bool = True
    ) -> List[Result]:
        """Reads into each memory from its offset: pairs (memory, offset), all at once."""
        return readv([self.extent(memory, offset) for memory, offset in extents], timeout=timeout, check=check)

    def write(
        self, memory: Any, offset: int = 0, length: Optional[int] = None, *, memory_offset: int = 0, settle: bool = True
    ) -> int:
        """Writes all of the memory's bytes (or `length` from `memory_offset`) at `offset`; returns how many.

        Opened with "a", the offset counts for nothing: they go to the end. Memory of a GPU is written from when the
        work that its owner has queued on the current stream is over (settle=False: the caller has seen to it). What has
        returned is seen by every later read on every mount; `sync` makes it durable.
        """
        buffers = Buffers(settle)
        buffer = buffers.get(self.client, memory, False)
        if buffer is None:
            self._its()
            return 0
        try:
            start = natural("memory_offset", memory_offset)
            count = buffer.size - start if length is None else natural("length", length)
            if start > buffer.size or count > buffer.size - start:
                raise ValueError(f"{count} bytes at {start} of memory that has {buffer.size}")
            step = max(count, 1) if self._appends else _WRITE_STEP  # one append stays in one piece
            for done in range(0, count, step):
                self._write_run(buffer, start + done, natural("offset", offset) + done, min(step, count - done))
            return count
        finally:
            buffers.release()

    def _write_run(self, buffer: Buffer, start: int, offset: int, length: int) -> None:
        result = _library.ResultStruct(ctypes.sizeof(_library.ResultStruct))
        _library.check(
            _library.library().nacre_write(self._its(), offset, buffer._its(), start, length, byref(result))
        )
        if result.bytes != length:
            raise errors.make(errno.EIO, f"{self.name}: {result.bytes} bytes of {length} were written at {offset}")

    def sync(self) -> None:
        """As fsync(2)."""
        _library.check(_library.library().nacre_file_sync(self._its()))

    def close(self) -> None:
        """Reads under way go on. The error is that of an earlier write that could not be sent. Again: does nothing."""
        handle = self._take()
        if handle is None or self.client.closed:
            return
        _library.check(_library.library().nacre_file_close(handle))

    def _forgotten(self) -> None:
        warnings.warn(f"unclosed {self!r}", ResourceWarning, source=self)

    def __repr__(self) -> str:
        return f"<nacre.File {self.name!r} {self.mode}>"


class Client(Owned):
    """A connection to one filesystem. Thread-safe.

    `address`: "host:port" or "unix:/path" of the MDS, of several with copies of one MDT all of them with commas
    between; paths of files then begin at the filesystem's root.
    `Client.from_path` takes any path on a mount instead, and paths are then the process's own.

    soft: a server that is away for `soft_timeout` seconds (60) is an EIO, else it is waited for. verify=False: what
    arrives is not compared with its checksums. cache=False: no leases. name: in `nacre status`. transport: "auto",
    "shm", "rdma", "tcp". cache_bytes: for writes (0: 128 MiB). threads: its own.

    A process that was forked after its first client was opened cannot use the library (Denied, EPERM).
    """

    def __init__(
        self,
        address: str,
        *,
        soft: bool = False,
        verify: bool = True,
        cache: bool = True,
        name: Optional[str] = None,
        transport: Optional[str] = None,
        soft_timeout: float = 0,
        cache_bytes: int = 0,
        threads: int = 0,
        _by_path: bool = False,
    ) -> None:
        super().__init__()
        self.address = address
        flags = (soft and _library.CLIENT_SOFT) | (not verify and _library.CLIENT_NO_VERIFY)
        options = _library.ClientOptions(
            ctypes.sizeof(_library.ClientOptions),
            flags | (not cache and _library.CLIENT_NO_CACHE),
            None if name is None else name.encode(),
            None if transport is None else transport.encode(),
            int(soft_timeout * 1e9),
            cache_bytes,
            threads,
        )
        library, handle = _library.library(), _library.Handle()
        opens = library.nacre_client_from_path if _by_path else library.nacre_client_open
        _library.check(opens(os.fsencode(address), byref(options), byref(handle)))
        self._handle = handle

    @classmethod
    def from_path(cls, path: Path, **options: Any) -> "Client":
        """By any path on a mount of the filesystem; options as of the class. ENOTSUP: it is on no Nacre mount."""
        return cls(os.fsdecode(path), _by_path=True, **options)

    def open(self, path: Path, mode: str = "rb", *, permissions: int = 0o666) -> File:
        """As `nacre.open`."""
        return File(self, path, mode, permissions)

    def register(self, memory: Any) -> Buffer:
        """A Buffer of an object's memory, which it keeps until it is released."""
        found = memory_of(memory)
        if found.size == 0:
            raise errors.unusable(errno.EINVAL, f"{found.what} has no bytes: there is nothing to register")
        return Buffer(self, found)

    def capabilities(self) -> Capabilities:
        """Whether, and how, bytes get into GPU memory. The first call looks for GPUs, which may take seconds."""
        raw = _library.Capabilities(ctypes.sizeof(_library.Capabilities))
        _library.check(_library.library().nacre_client_capabilities(self._its(), byref(raw)))
        return Capabilities(
            bool(raw.flags & _library.CAN_READ_TO_DEVICE),
            bool(raw.flags & _library.CAN_USE_STREAMS),
            raw.gpus,
            raw.device.decode("utf-8", "replace"),
            tuple(raw.paths.decode("utf-8", "replace").splitlines()),
        )

    def close(self) -> None:
        """Ends reads under way (Cancelled), sends what was written, closes files and buffers of this client.

        The error is that of a write that could not be sent. Again: does nothing.
        """
        handle = self._take()
        if handle is not None:
            _library.check(_library.library().nacre_client_close(handle))

    def __repr__(self) -> str:
        return f"<nacre.Client {self.address!r}>"


# --- the clients of nacre.open: one for each mounted filesystem, kept until disconnect() or the end of the process ---

_clients: Dict[int, Client] = {}
_clients_lock = threading.Lock()


def _forget_clients() -> None:
    global _clients_lock
    _clients_lock = threading.Lock()
    _clients.clear()


os.register_at_fork(after_in_child=_forget_clients)


def _somewhere(path: Path) -> str:
    """The path, or the directory that it is to be made in."""
    text = os.fsdecode(path)
    return text if os.path.exists(text) else os.path.dirname(text) or "."


def client_for(path: Path, *, anew: bool = False) -> Client:
    """The client of nacre.open for the mount that the path is on."""
    there = _somewhere(path)
    try:
        device = os.stat(there).st_dev
    except OSError as error:
        raise errors.make(error.errno or errno.EIO, f"{os.fsdecode(path)}: {error.strerror}") from None
    with _clients_lock:
        client = _clients.get(device)
        if client is None or client.closed or anew:
            client = _clients[device] = Client.from_path(there)
        return client


def open(path: Path, mode: str = "rb", *, client: Optional[Client] = None, permissions: int = 0o666) -> File:
    """Opens a file on a Nacre mount, as `open` does a local one.

    mode: "rb", "r+b", "wb", "w+b", "xb", "x+b", "ab", "a+b"; files are bytes. permissions: of a file that is made,
    less the umask. Without a client, the one of this process for the path's mount is taken; it stays connected until
    `nacre.disconnect()` or the end of the process. While it is connected the mount is not alone and caches less
    (libnacre(3), "The library and the mount").
    """
    if client is not None:
        return client.open(path, mode, permissions=permissions)
    try:
        return client_for(path).open(path, mode, permissions=permissions)
    except errors.Error as error:
        if error.errno != errno.EXDEV:
            raise
    # The number of an unmounted filesystem is another one's now.
    return client_for(path, anew=True).open(path, mode, permissions=permissions)


def disconnect() -> None:
    """Closes the clients that `nacre.open` has opened, and so their files."""
    with _clients_lock:
        clients = list(_clients.values())
        _clients.clear()
    for client in clients:
        client.close()
