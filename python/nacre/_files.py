"""Clients, buffers and files: the objects of nacre.h, with Python's lifetimes."""

from __future__ import annotations

import ctypes
import errno
import os
import sys
import threading
import warnings
from ctypes import byref
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple, Union

from . import _library, _reads, errors
from ._memory import Memory, memory_of
from ._reads import Read, Result

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
    """What a client can do."""

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


class _Owned:
    """Something of the library's with a handle: closed once, by `close`, `with` or the garbage collector."""

    _handle: Optional[_library.Handle]

    def __init__(self) -> None:
        self._handle = None
        self._closing = threading.Lock()
        self._pid = os.getpid()

    @property
    def closed(self) -> bool:
        return self._handle is None

    def _its(self) -> _library.Handle:
        handle = self._handle
        if handle is None:
            raise errors.make(errno.EBADF, f"{self!r} is closed")
        return handle

    def _take(self) -> Optional[_library.Handle]:
        with self._closing:
            handle, self._handle = self._handle, None
            return handle


class Buffer(_Owned):
    """Memory that is known to a client: registered once, used often. Made by `Client.register`.

    It keeps the object whose memory it is until `release`. Wherever memory is read into or written from, a Buffer can
    be given for it, which saves its registration each time. Thread-safe.
    """

    def __init__(self, client: "Client", memory: Memory) -> None:
        super().__init__()
        self.client, self._memory = client, memory
        #: In bytes.
        self.size = memory.size
        handle = _library.Handle()
        _library.check(
            _library.library().nacre_buffer_register(client._its(), memory.address, memory.size, byref(handle))
        )
        self._handle = handle
        try:
            self._compare(memory)
        except BaseException:
            self.release()
            raise

    def _info(self) -> _library.BufferInfo:
        info = _library.BufferInfo(ctypes.sizeof(_library.BufferInfo))
        _library.check(_library.library().nacre_buffer_get_info(self._its(), byref(info)))
        return info

    # What the object says of itself and what CUDA says of the address have to agree.
    def _compare(self, memory: Memory) -> None:
        if memory.gpu is None or self.kind in ("device", "managed"):
            return
        raise errors.unusable(
            errno.ENOTSUP, f"{memory.what} is said to be in memory of GPU {memory.gpu}, but its address is {self.kind} memory"
        )

    @property
    def kind(self) -> str:
        """ "host", "pinned", "managed" or "device"."""
        return _library.MEMORY_NAMES[self._info().memory]

    @property
    def gpu(self) -> Optional[int]:
        """CUDA's number of the GPU, or None."""
        number = self._info().gpu
        return None if number < 0 else number

    def release(self) -> None:
        """Returns when nobody reads or writes the memory any more, and lets go of it. Again: does nothing."""
        handle = self._take()
        if handle is not None and self._pid == os.getpid():
            _library.library().nacre_buffer_release(handle)  # EBADF: its client was closed, which released it
        self._memory.release()

    close = release

    def __enter__(self) -> "Buffer":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __del__(self, _ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if getattr(self, "_handle", None) is not None and not _ending():
            self.release()

    def __repr__(self) -> str:
        return f"<nacre.Buffer of {self._memory.what}>"


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


class _Buffers:
    """The buffers of one operation: given ones, and those that are registered for it alone."""

    def __init__(self, settle: bool) -> None:
        self.all: List[Buffer] = []
        self.temporary: List[Buffer] = []
        self._settle = settle
        self._known: Dict[int, Buffer] = {}

    def get(self, client: "Client", thing: Any, writable: bool) -> Optional[Buffer]:
        """None: memory of no bytes."""
        buffer = self._known.get(id(thing))
        if buffer is None:
            buffer = self._find(client, thing, writable)
            if buffer is None:
                return None
            self._known[id(thing)] = buffer
        return buffer

    def _find(self, client: "Client", thing: Any, writable: bool) -> Optional[Buffer]:
        if isinstance(thing, Buffer):
            buffer = thing
            buffer._its()
            if writable:
                buffer._memory.require_writable()
            if self._settle:
                buffer._memory.settle()
        else:
            memory = memory_of(thing)
            if writable:
                memory.require_writable()
            if memory.size == 0:
                return None
            if self._settle:
                memory.settle()
            buffer = Buffer(client, memory)
            self.temporary.append(buffer)
        self.all.append(buffer)
        return buffer

    def release(self) -> None:
        for buffer in self.temporary:
            buffer.release()


def _number(what: str, value: Any) -> int:
    value = value.__index__()
    if not 0 <= value < 1 << 63:
        raise ValueError(f"{what} is {value}: it has to be from 0 to 2^63 - 1")
    return value


def _fill(raw: _library.ExtentStruct, extent: Extent, buffers: _Buffers) -> bool:
    """False: nothing is to be read."""
    buffer = buffers.get(extent.file.client, extent.memory, True)
    size = 0 if buffer is None else buffer.size
    memory_offset = _number("memory_offset", extent.memory_offset)
    if extent.length is None and memory_offset > size:
        raise ValueError(f"memory_offset is {memory_offset}, beyond the memory's {size} bytes")
    length = size - memory_offset if extent.length is None else _number("length", extent.length)
    if buffer is None:
        if length or memory_offset:
            raise ValueError(f"{length} bytes at {memory_offset} of memory that has none")
        extent.file._its()
        return False
    raw.struct_size = ctypes.sizeof(_library.ExtentStruct)
    raw.file, raw.buffer = extent.file._its().id, buffer._its().id
    raw.offset, raw.length, raw.buffer_offset = _number("offset", extent.offset), length, memory_offset
    raw.rows = _number("rows", extent.rows)
    raw.file_stride = _number("file_stride", extent.file_stride)
    raw.buffer_stride = _number("buffer_stride", extent.buffer_stride)
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
    number = _stream_number(stream)
    buffers, places = _Buffers(settle and number is None), _Places()
    raw = (_library.ExtentStruct * len(extents))()
    try:
        filled, is_there = 0, []
        for extent in extents:
            is_there.append(_fill(raw[filled], extent, buffers))
            if is_there[-1]:
                places.add(raw[filled])
                filled += 1
        places.check()
        if filled == 0:
            return _Submitted(None, is_there)
        given = (_library.ExtentStruct * filled).from_buffer(raw)
        pending = _reads.begin(given, buffers.all, buffers.temporary, timeout, number)
    except BaseException:
        buffers.release()
        raise
    return _Submitted(pending, is_there)


def readv(
    extents: Iterable[Extent], *, timeout: Optional[float] = None, stream: Any = None, check: bool = True
) -> List[Result]:
    """Reads them and waits for it: `submit(...).result(check=check)`. Ctrl-C cancels it."""
    return _wait(submit(extents, timeout=timeout, stream=stream), check)


def _wait(read: Read, check: bool) -> List[Result]:
    try:
        return read.result(check=check)
    except BaseException:
        if not read.done():  # Ctrl-C
            read.cancel()
            read.wait()
        raise


class File(_Owned):
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
            length = max(0, self.size - _number("offset", offset))
        memory = bytearray(_number("length", length))
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
        buffers = _Buffers(settle)
        buffer = buffers.get(self.client, memory, False)
        if buffer is None:
            self._its()
            return 0
        try:
            start = _number("memory_offset", memory_offset)
            count = buffer.size - start if length is None else _number("length", length)
            if start > buffer.size or count > buffer.size - start:
                raise ValueError(f"{count} bytes at {start} of memory that has {buffer.size}")
            step = max(count, 1) if self._appends else _WRITE_STEP  # one append stays in one piece
            for done in range(0, count, step):
                self._write_run(buffer, start + done, _number("offset", offset) + done, min(step, count - done))
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
        if handle is None or self._pid != os.getpid() or self.client.closed:
            return
        _library.check(_library.library().nacre_file_close(handle))

    def __enter__(self) -> "File":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self, _ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if getattr(self, "_handle", None) is None or _ending():
            return
        warnings.warn(f"unclosed {self!r}", ResourceWarning, source=self)
        try:
            self.close()
        except OSError:
            pass  # nobody is there to hear it; sync() is how to be sure

    def __repr__(self) -> str:
        return f"<nacre.File {self.name!r} {self.mode}>"


class Client(_Owned):
    """A connection to one filesystem. Thread-safe.

    `address`: "host:port" or "unix:/path" of the MDS; paths of files then begin at the filesystem's root.
    `Client.from_path` takes any path on a mount instead, and paths are then the process's own.

    soft: a server that is away for `soft_timeout` seconds (60) is an EIO, else it is waited for. verify=False: what
    arrives is not compared with its checksums. cache=False: no leases. name: in `nacre status`. transport: "auto",
    "shm", "rdma", "tcp". cache_bytes: for writes. threads: of the library.

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
        if handle is not None and self._pid == os.getpid():
            _library.check(_library.library().nacre_client_close(handle))

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # At the end of the interpreter the library closes what is left by itself, in bounded time.
    def __del__(self, _ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if getattr(self, "_handle", None) is None or _ending():
            return
        try:
            self.close()
        except OSError:
            pass

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
