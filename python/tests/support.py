"""Common ground: a directory on a mount, and memory of a GPU that is not there.

NACRE_TEST_DIR names a directory on a Nacre mount; tests that need one are skipped without, tests/system/python.sh gives
one. NACRE_TEST_SERVER_PID: of the process that serves it, for tests that stop it. NACRE_CUDA_LIBRARY: the driver without a
GPU (docs/testing.md).
"""

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

PYTHON = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SERVER = int(os.environ.get("NACRE_TEST_SERVER_PID", "0"))
CUDA = os.environ.get("NACRE_CUDA_LIBRARY", "")

needs_server = unittest.skipUnless(SERVER, "NACRE_TEST_SERVER_PID is not set")
needs_gpu = unittest.skipUnless("fake-cuda" in CUDA, "NACRE_CUDA_LIBRARY does not name libnacre-fake-cuda.so")


@unittest.skipUnless(os.environ.get("NACRE_TEST_DIR"), "NACRE_TEST_DIR names no directory on a Nacre mount")
class OnMount(unittest.TestCase):
    """With an empty directory on the mount, `self.path(NAME)`."""

    def setUp(self):
        self.directory = tempfile.mkdtemp(dir=os.environ["NACRE_TEST_DIR"])
        self.addCleanup(shutil.rmtree, self.directory)

    def path(self, name):
        return os.path.join(self.directory, name)

    def make(self, name, content):
        with open(self.path(name), "wb") as out:
            out.write(content)
        return self.path(name)

    def content(self, name):
        with open(self.path(name), "rb") as file:
            return file.read()


def stop(process, bound=10):
    """Stops a process. All its threads stand still when this returns: until one of them has met the signal, the others
    still answer."""
    os.kill(process, signal.SIGSTOP)
    until = time.monotonic() + bound
    while any(state != "T" for state in _states(process)):
        assert time.monotonic() < until, f"process {process} does not stop"
        time.sleep(0.001)


def _states(process):
    """A letter for each thread of a process, as proc(5) gives them."""
    tasks = f"/proc/{process}/task"
    for task in os.listdir(tasks):
        try:
            with open(f"{tasks}/{task}/stat") as stat:
                yield stat.read().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            pass  # it has ended since


class Stopped:
    """The server's process stands still within."""

    def __enter__(self):
        stop(SERVER)

    def __exit__(self, *_):
        os.kill(SERVER, signal.SIGCONT)


@contextlib.contextmanager
def names_watched():
    """Gives a list, to which each os.replace within adds ("replace", target) and each os.fsync ("fsync", path)."""
    seen, replace, fsync = [], os.replace, os.fsync

    def watched_replace(source, target):
        seen.append(("replace", target))
        replace(source, target)

    def watched_fsync(fd):
        seen.append(("fsync", os.readlink(f"/proc/self/fd/{fd}")))
        fsync(fd)

    with mock.patch("os.replace", watched_replace), mock.patch("os.fsync", watched_fsync):
        yield seen


def run_python(program, *arguments, timeout=60):
    """Runs the text in a process of its own; what it printed, and how it ended."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=timeout,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [PYTHON, os.environ.get("PYTHONPATH", "")]))},
    )  # fmt: skip
    return done


class GpuMemory:
    """Memory of the made-up GPU, with canaries: a CPU that touches it dies."""

    CANARY = 0xA5
    _driver = None

    @classmethod
    def driver(cls):
        if cls._driver is None:
            cls._driver = ctypes.CDLL(CUDA)
            context = ctypes.c_void_p()
            assert cls._driver.cuInit(0) == 0
            assert cls._driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
            assert cls._driver.cuCtxPushCurrent_v2(context) == 0
            cls._driver.nacre_fake_cuda_alias.restype = ctypes.c_void_p
            cls._driver.nacre_fake_cuda_alias.argtypes = [ctypes.c_void_p]
            cls._driver.cuMemFree_v2.argtypes = [ctypes.c_uint64]
            cls._driver.cuMemsetD8Async.argtypes = [ctypes.c_uint64, ctypes.c_uint8, ctypes.c_size_t, ctypes.c_void_p]
        return cls._driver

    def __init__(self, size):
        address = ctypes.c_uint64()
        assert self.driver().cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)) == 0
        self.address, self.size, self.freed = address.value, size, False
        ctypes.memset(self._alias(), self.CANARY, size)

    @classmethod
    def stream(cls):
        """A stream of the made-up driver; it knows no other ones than those that it has made."""
        made = ctypes.c_void_p()
        assert cls.driver().cuStreamCreate(ctypes.byref(made), 1) == 0
        return made.value

    def fill_in_stream(self, value, stream):
        assert self.driver().cuMemsetD8Async(self.address, value, self.size, stream) == 0

    def _alias(self):
        return self.driver().nacre_fake_cuda_alias(self.address)

    def bytes(self):
        return ctypes.string_at(self._alias(), self.size)

    def set(self, content):
        ctypes.memmove(self._alias(), content, len(content))

    def free(self):
        if not self.freed:
            self.freed = True
            self.driver().cuMemFree_v2(self.address)

    def __del__(self):
        self.free()


class CudaArray:
    """A part of GPU memory as CuPy shows it."""

    def __init__(self, memory, begin=0, shape=None, typestr="|u1", strides=None, readonly=False, stream=None):
        self.memory = memory
        self.__cuda_array_interface__ = {
            "shape": (memory.size - begin,) if shape is None else shape,
            "typestr": typestr,
            "data": (memory.address + begin, readonly),
            "strides": strides,
            "version": 3,
            "stream": stream,
        }


class OnlyDlpack:
    """An array of which nothing but DLPack is to be seen."""

    def __init__(self, array):
        self._array = array

    def __dlpack__(self, stream=None):
        return self._array.__dlpack__()

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()
