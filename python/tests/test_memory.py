"""nacre._memory: what may be read into and written from, and how long it is kept."""

import array
import ctypes
import gc
import mmap
import unittest
import weakref

import numpy as np

import nacre
from nacre._memory import memory_of

from .support import CudaArray, OnlyDlpack


class FakeMemory:  # an address that nothing follows
    address, size = 0x7000_0000_0000, 4096


class Elsewhere:
    def __dlpack__(self, stream=None):
        raise AssertionError("nobody may ask for it")

    def __dlpack_device__(self):
        return (10, 0)


class MemoryTest(unittest.TestCase):
    def refused(self, thing, words):
        with self.assertRaisesRegex(nacre.UnusableMemory, words):
            memory_of(thing).require_writable()

    def test_everything_with_the_buffer_protocol(self):
        for thing in (bytearray(12), array.array("i", [1, 2, 3]), np.zeros((3, 4), np.uint8), mmap.mmap(-1, 12), memoryview(bytearray(24))[6:18]):
            memory = memory_of(thing)
            self.assertEqual((memory.size, memory.readonly, memory.gpu), (12, False, None))

    def test_the_address_is_that_of_the_bytes(self):
        held = np.arange(10, dtype=np.uint8)
        self.assertEqual(memory_of(held[3:]).address, held.ctypes.data + 3)
        self.assertEqual(ctypes.string_at(memory_of(b"abc").address, 3), b"abc")

    def test_a_bytearray_cannot_be_resized_while_it_is_in_use(self):
        held = bytearray(10)
        memory = memory_of(held)
        with self.assertRaises(BufferError):
            held.append(1)
        memory.release()
        held.append(1)

    def test_a_dropped_memory_lets_go(self):
        held = bytearray(10)
        memory_of(held)
        gc.collect()
        held.append(1)

    def test_the_object_is_kept(self):
        held = np.zeros(10)
        gone = weakref.ref(held)
        memory = memory_of(held)
        del held
        gc.collect()
        self.assertIsNotNone(gone())
        memory.release()
        gc.collect()
        self.assertIsNone(gone())

    def test_dlpack_of_the_host(self):
        held = np.arange(12, dtype=np.float32)
        memory = memory_of(OnlyDlpack(held.reshape(3, 4)[1:]))
        self.assertEqual((memory.address, memory.size, memory.gpu), (held.ctypes.data + 16, 32, None))
        gone = weakref.ref(held)
        del held
        gc.collect()
        self.assertIsNotNone(gone())
        memory.release()
        gc.collect()
        self.assertIsNone(gone())

    def test_what_is_not_contiguous_is_refused(self):
        self.refused(np.zeros((4, 4))[:, 1], "not contiguous")
        self.refused(np.zeros((4, 4)).T[:, 1:], "not contiguous")
        self.refused(OnlyDlpack(np.zeros((4, 4))[:, 1]), "not contiguous")
        self.refused(CudaArray(FakeMemory, 0, (4, 4), "<f4", strides=(32, 4)), "not contiguous")

    def test_what_is_read_only_is_refused_as_a_target(self):
        fixed = np.zeros(4)
        fixed.flags.writeable = False
        for thing in (b"abc", memoryview(b"abc"), fixed):
            self.refused(thing, "read-only")

    def test_other_devices_are_refused(self):
        self.refused(Elsewhere(), "ROCm")

    def test_what_has_no_memory_is_a_type_error(self):
        for thing in (3, "text", None, [1, 2], object()):
            with self.assertRaisesRegex(TypeError, "has no memory"):
                memory_of(thing)

    def test_a_mask_and_a_nonsense_type_are_refused(self):
        masked = CudaArray(FakeMemory)
        masked.__cuda_array_interface__["mask"] = masked
        self.refused(masked, "mask")
        self.refused(CudaArray(FakeMemory, 0, (1,), "nonsense"), "size is not known")


if __name__ == "__main__":
    unittest.main()
