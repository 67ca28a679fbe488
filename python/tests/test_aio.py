"""nacre.aio."""

import asyncio
import os
import unittest

import nacre
import nacre.aio

from .support import OnMount, Stopped, needs_server


class AioTest(OnMount):
    def setUp(self):
        super().setUp()
        self.data = os.urandom(2_000_000)
        self.make("data", self.data)

    def test_reading_and_writing(self):
        async def work():
            async with await nacre.aio.open(self.path("data")) as file:
                parts = [bytearray(20_000) for _ in range(100)]
                counts = await asyncio.gather(*(file.read_into(part, i * 20_000) for i, part in enumerate(parts)))
                self.assertEqual(counts, [20_000] * 100)
                self.assertEqual(b"".join(parts), self.data)
                self.assertEqual(await file.read(10, 5), self.data[5:15])
                self.assertEqual(await file.read(), self.data)
                results = await file.readv([(bytearray(5), 0), (bytearray(), 0), (bytearray(7), 1_999_995)])
                self.assertEqual([result.bytes for result in results], [5, 0, 5])
            async with await nacre.aio.open(self.path("new"), "wb") as file:
                await asyncio.gather(*(file.write(self.data[i : i + 100_000], i) for i in range(0, 2_000_000, 100_000)))
                await file.sync()

        asyncio.run(work())
        self.assertEqual(self.content("new"), self.data)

    def test_errors_are_those_of_the_other_calls(self):
        async def work():
            with self.assertRaises(FileNotFoundError):
                await nacre.aio.open(self.path("nowhere"))
            async with await nacre.aio.open(self.path("data")) as file:
                with self.assertRaises(nacre.UnusableMemory):
                    await file.read_into(b"fixed")
                with file.file.client.register(bytearray(10)) as buffer:
                    with self.assertRaises(nacre.Error):
                        await file.read_into(buffer, 0, 11)

        asyncio.run(work())

    @needs_server
    def test_a_cancelled_read_has_ended_when_it_returns(self):
        async def work():
            async with await nacre.aio.open(self.path("data")) as file:
                await file.read(10)
                memory = bytearray(1000)
                with Stopped():
                    with self.assertRaises(asyncio.TimeoutError):
                        await asyncio.wait_for(file.read_into(memory), 0.3)
                    memory.append(1)  # a BufferError if it were in use
                    with self.assertRaises(nacre.TimedOut):
                        await file.read_into(memory, timeout=0.2)
                    task = asyncio.ensure_future(file.read_into(memory))
                    await asyncio.sleep(0.1)
                    self.assertFalse(task.done())
                    task.cancel()
                    with self.assertRaises(asyncio.CancelledError):
                        await task
                    memory.append(1)
                self.assertEqual(await file.read_into(memory), 1002)

        asyncio.run(work())

    @needs_server
    def test_the_loop_goes_on_while_reads_wait(self):
        async def work():
            async with await nacre.aio.open(self.path("data")) as file:
                await file.read(10)
                with Stopped():
                    stuck = [asyncio.ensure_future(file.read_into(bytearray(10))) for _ in range(50)]
                    for _ in range(10):
                        await asyncio.sleep(0.02)
                    self.assertFalse(any(task.done() for task in stuck))
                self.assertEqual(await asyncio.gather(*stuck), [10] * 50)

        asyncio.run(work())


if __name__ == "__main__":
    unittest.main()
