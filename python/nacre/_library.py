"""libnacre.so.0 and its C interface (nacre/nacre.h), by ctypes.

Looked for in this order: what NACRE_LIBRARY names; beside this file; where the dynamic loader finds it, which is
where the Debian package puts it.
"""

from __future__ import annotations

import ctypes
import os
import threading
from ctypes import POINTER, c_char, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Optional

from . import errors

SONAME = "libnacre.so.0"

CLIENT_SOFT, CLIENT_NO_VERIFY, CLIENT_NO_CACHE = 1, 2, 4
REQUEST_READ, REQUEST_WRITE = 0, 1
CAN_READ_TO_DEVICE, CAN_USE_STREAMS = 1, 2
MEMORY_NAMES = ("host", "pinned", "managed", "device")
VERIFICATION_NAMES = ("none", "host", "device")


class Handle(ctypes.Structure):
    """A nacre_client, nacre_file, nacre_buffer, nacre_future or nacre_queue: all are one number."""

    _fields_ = [("id", c_uint64)]


class ClientOptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint64),
        ("flags", c_uint64),
        ("name", c_char_p),
        ("transport", c_char_p),
        ("soft_timeout", c_int64),
        ("cache_bytes", c_uint64),
        ("threads", c_uint64),
    ]


class Capabilities(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint64),
        ("flags", c_uint64),
        ("gpus", c_uint64),
        ("device", c_char * 512),
        ("paths", c_char * 1024),
    ]


class BufferInfo(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint64),
        ("address", c_void_p),
        ("size", c_uint64),
        ("memory", c_uint32),
        ("gpu", c_int32),
    ]


class ResultStruct(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint64),
        ("error", c_int32),
        ("verification", c_uint32),
        ("bytes", c_uint64),
        ("path", c_char * 40),
        ("message", c_char * 192),
    ]


class ExtentStruct(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint64),
        ("file", c_uint64),
        ("offset", c_uint64),
        ("buffer", c_uint64),
        ("buffer_offset", c_uint64),
        ("length", c_uint64),
        ("rows", c_uint64),
        ("file_stride", c_uint64),
        ("buffer_stride", c_uint64),
    ]


class RequestStruct(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint64),
        ("user_data", c_uint64),
        ("operation", c_uint32),
        ("reserved", c_uint32),
        ("file", c_uint64),
        ("offset", c_uint64),
        ("buffer", c_uint64),
        ("buffer_offset", c_uint64),
        ("length", c_uint64),
    ]


class CompletionStruct(ctypes.Structure):
    _fields_ = [("user_data", c_uint64), ("result", c_int64)]


class IoOptions(ctypes.Structure):
    _fields_ = [("struct_size", c_uint64), ("timeout", c_int64)]


_SIGNATURES = {
    "nacre_client_open": (c_char_p, POINTER(ClientOptions), POINTER(Handle)),
    "nacre_client_from_path": (c_char_p, POINTER(ClientOptions), POINTER(Handle)),
    "nacre_client_close": (Handle,),
    "nacre_client_capabilities": (Handle, POINTER(Capabilities)),
    "nacre_file_open": (Handle, c_char_p, c_int, c_uint32, POINTER(Handle)),
    "nacre_file_size": (Handle, POINTER(c_uint64)),
    "nacre_file_sync": (Handle,),
    "nacre_file_close": (Handle,),
    "nacre_buffer_register": (Handle, c_void_p, c_size_t, POINTER(Handle)),
    "nacre_buffer_release": (Handle,),
    "nacre_buffer_get_info": (Handle, POINTER(BufferInfo)),
    "nacre_write": (Handle, c_uint64, Handle, c_uint64, c_uint64, POINTER(ResultStruct)),
    "nacre_readv_async": (POINTER(ExtentStruct), c_size_t, POINTER(IoOptions), POINTER(Handle)),
    "nacre_read_on_stream": (c_void_p, POINTER(ExtentStruct), c_size_t, POINTER(IoOptions), POINTER(Handle)),
    "nacre_future_wait": (Handle, c_int64),
    "nacre_future_cancel": (Handle,),
    "nacre_future_results": (Handle, POINTER(ResultStruct), c_size_t),
    "nacre_future_free": (Handle,),
    "nacre_queue_open": (Handle, c_uint64, POINTER(Handle)),
    "nacre_queue_submit": (Handle, POINTER(RequestStruct), c_size_t, POINTER(IoOptions), POINTER(c_size_t)),
    "nacre_queue_reap": (Handle, c_size_t, c_int64, POINTER(CompletionStruct), c_size_t, POINTER(c_size_t)),
    "nacre_queue_event_fd": (Handle, POINTER(c_int)),
    "nacre_queue_cancel": (Handle, POINTER(c_uint64)),
    "nacre_queue_close": (Handle,),
}

_lock = threading.Lock()
_loaded: Optional[ctypes.CDLL] = None


def _path() -> str:
    named = os.environ.get("NACRE_LIBRARY")
    if named:
        return named
    beside = os.path.join(os.path.dirname(os.path.abspath(__file__)), SONAME)
    return beside if os.path.exists(beside) else SONAME


def _open() -> ctypes.CDLL:
    path = _path()
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(
            f"no libnacre: cannot open {path} ({error}). Install Nacre's Debian package, or name the library in NACRE_LIBRARY"
        ) from None
    for name, arguments in _SIGNATURES.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            raise ImportError(f"{path} has no {name}: it is no libnacre, or one of another version") from None
        function.argtypes, function.restype = arguments, c_int
    for name in ("nacre_version", "nacre_error_message"):
        getattr(library, name).argtypes, getattr(library, name).restype = (), c_char_p
    return library


def library() -> ctypes.CDLL:
    """The library, opened by the first call. ImportError says what was tried."""
    global _loaded
    if _loaded is None:
        with _lock:
            if _loaded is None:
                _loaded = _open()
    return _loaded


def last_words() -> str:
    """Why the last call of this thread that failed did so. Right after that call."""
    return library().nacre_error_message().decode("utf-8", "replace")


def last_error(number: int) -> errors.Error:
    """The exception for what the last call of this thread answered. Right after that call."""
    return errors.make(number, last_words())


def check(number: int) -> None:
    if number != 0:
        raise last_error(number)


def version() -> str:
    """Of libnacre, such as "0.1.0"."""
    return library().nacre_version().decode()
