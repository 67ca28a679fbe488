"""Memory that the library knows, and the numbers that say where in it."""

from __future__ import annotations

import ctypes
import errno
from ctypes import byref
from typing import TYPE_CHECKING, Any, Dict, List, Optional

from . import _library, errors
from ._memory import Memory, memory_of
from ._owned import Owned

if TYPE_CHECKING:
    from ._files import Client


class Buffer(Owned):
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

    # Checks that the object's own word on its memory agrees with CUDA's on the address.
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
        if handle is not None:
            _library.library().nacre_buffer_release(handle)  # EBADF: its client was closed, which released it
        self._memory.release()

    close = release

    def __repr__(self) -> str:
        return f"<nacre.Buffer of {self._memory.what}>"


class Buffers:
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


def natural(what: str, value: Any) -> int:
    value = value.__index__()
    if not 0 <= value < 1 << 63:
        raise ValueError(f"{what} is {value}: it has to be from 0 to 2^63 - 1")
    return value
