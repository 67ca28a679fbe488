"""Memory of a GPU, with the driver that needs none: its memory kills the CPU that touches it."""

import asyncio
import ctypes
import os
import unittest

import nacre
import nacre.aio
from nacre._memory import memory_of

from .support import CudaArray, GpuMemory, OnMount, needs_gpu


@needs_gpu
class GpuMemoryTest(OnMount):
    def setUp(self):
        super().setUp()
        self.data = os.urandom(1_500_000)
        self.file = nacre.open(self.make("data", self.data))
        self.addCleanup(self.file.close)

    def test_reads_into_it_and_touches_nothing_else(self):
        memory = GpuMemory(1_000_000)
        part = CudaArray(memory, 4096, (100, 100), "<f4")
        result = nacre.readv([self.file.extent(part, 777)])[0]
        self.assertEqual(result.bytes, 40_000)
        self.assertIn("gpu", result.path)
        self.assertEqual(memory.bytes(), b"\xa5" * 4096 + self.data[777:40_777] + b"\xa5" * (1_000_000 - 4096 - 40_000))

    def test_a_registered_buffer(self):
        memory = GpuMemory(500_000)
        with self.file.client.register(CudaArray(memory)) as buffer:
            self.assertEqual((buffer.kind, buffer.gpu), ("device", 0))
            for offset in (0, 500_000, 1_000_000):
                self.assertEqual(self.file.read_into(buffer, offset), 500_000)
                self.assertEqual(memory.bytes(), self.data[offset : offset + 500_000])

    def test_writes_from_it(self):
        memory = GpuMemory(300_000)
        memory.set(self.data[:300_000])
        with nacre.open(self.path("new"), "wb") as file:
            self.assertEqual(file.write(CudaArray(memory, readonly=True)), 300_000)
        self.assertEqual(self.content("new"), self.data[:300_000])

    def test_the_stream_of_its_owner_is_waited_for(self):
        """A fill that is queued in the stream comes before the bytes, not over them."""
        memory = GpuMemory(1_000_000)
        stream = memory.stream()
        for value in range(20):
            memory.fill_in_stream(value, stream)
            self.file.read_into(CudaArray(memory, stream=stream))
            self.assertEqual(memory.bytes(), self.data[:1_000_000])

    def test_in_the_order_of_a_stream(self):
        memory = GpuMemory(100_000)
        stream = memory.stream()
        memory.fill_in_stream(0x11, stream)
        read = nacre.submit([self.file.extent(CudaArray(memory), 5)], stream=stream)
        self.assertEqual(read.result(20)[0].bytes, 100_000)
        self.assertEqual(memory.bytes(), self.data[5:100_005])
        with self.assertRaises(TypeError):
            nacre.submit([self.file.extent(bytearray(3))], stream="x")

    def test_memory_that_was_freed_is_an_error(self):
        memory = GpuMemory(100_000)
        with self.file.client.register(CudaArray(memory)) as buffer:
            memory.free()
            with self.assertRaisesRegex(nacre.Error, "was freed"):
                self.file.read_into(buffer)
            with self.assertRaisesRegex(nacre.Error, "was freed"):
                with nacre.open(self.path("new"), "wb") as file:
                    file.write(buffer)

    def test_a_cuda_array(self):
        memory = GpuMemory(4096)
        found = memory_of(CudaArray(memory, 16, (2, 5), "<f4"))
        self.assertEqual((found.address, found.size, found.gpu), (memory.address + 16, 40, 0))
        self.assertEqual(memory_of(CudaArray(memory, 0, (2, 1, 5), "<f4", strides=(20, 999, 4))).size, 40)
        self.assertEqual(memory_of(CudaArray(memory, 0, (0, 5), "<f4", strides=(1, 1))).size, 0)
        with self.assertRaisesRegex(nacre.UnusableMemory, "read-only"):
            memory_of(CudaArray(memory, readonly=True)).require_writable()

    def test_writes_of_asyncio_come_after_what_is_queued(self):
        memory = GpuMemory(300_000)
        stream = memory.stream()

        async def work():
            async with await nacre.aio.open(self.path("new"), "wb") as file:
                memory.fill_in_stream(0x11, stream)
                await file.write(CudaArray(memory, stream=stream))

        asyncio.run(work())
        self.assertEqual(self.content("new"), b"\x11" * 300_000)

    def test_memory_of_the_host_that_says_otherwise_is_refused(self):
        class Claim:
            size = 100
            held = bytearray(100)

        Claim.address = ctypes.addressof(ctypes.c_char.from_buffer(Claim.held))
        with self.assertRaisesRegex(nacre.UnusableMemory, "is said to be in memory of a GPU"):
            self.file.read_into(CudaArray(Claim))
        self.assertEqual(Claim.held, bytes(100))

    def test_capabilities(self):
        told = self.file.client.capabilities()
        self.assertTrue(told.reads_to_device)
        self.assertGreater(told.gpus, 0)


if __name__ == "__main__":
    unittest.main()
