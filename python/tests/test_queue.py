"""nacre.Queue."""

import asyncio
import contextlib
import ctypes
import errno
import os
import random
import select
import signal
import unittest

import nacre
from nacre import _library

from .support import CudaArray, GpuMemory, OnMount, Stopped, needs_gpu, needs_server, run_python


@contextlib.contextmanager
def interrupted_after(seconds):
    """As Ctrl-C at that time."""
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class QueueTest(OnMount):
    def setUp(self):
        super().setUp()
        self.data = os.urandom(2_000_000)
        self.file = nacre.open(self.make("data", self.data), "r+b")
        self.addCleanup(self.file.close)

    def queue(self, depth=64):
        queue = nacre.Queue(self.file.client, depth)
        self.addCleanup(queue.close)
        return queue

    def reads(self, count, size=4096):
        places = [random.randrange(len(self.data) - size) for _ in range(count)]
        return [(self.file.extent(bytearray(size), place), place) for place in places]

    def with_one_done(self, depth=64):
        """A queue with a completion, tagged "done", that nobody has taken yet."""
        queue, fd = self.queue(depth), ctypes.c_int(-1)
        queue.submit([(self.file.extent(bytearray(4096)), "done")])
        self.assertEqual(_library.library().nacre_queue_event_fd(queue._its(), ctypes.byref(fd)), 0)
        try:
            self.assertTrue(select.select([fd.value], [], [], 30)[0])
        finally:
            os.close(fd.value)
        return queue

    def test_many_small_reads(self):
        queue, left, seen = self.queue(), self.reads(500), 0
        while left or len(queue):
            some, left = left[: 64 - len(queue)], left[64 - len(queue) :]
            queue.submit([(extent, (extent, place)) for extent, place in some])
            for done in queue.reap(16):
                extent, place = done.tag
                self.assertEqual((done.bytes, done.error), (4096, None))
                self.assertEqual(bytes(extent.memory), self.data[place : place + 4096])
                seen += 1
        self.assertEqual(seen, 500)
        self.assertEqual(queue.reap(5), [])

    def test_a_full_one_takes_none(self):
        queue = self.queue(4)
        queue.submit(self.reads(4))
        with self.assertRaises(nacre.Error) as caught:
            queue.submit(self.reads(1))
        self.assertEqual(caught.exception.errno, errno.EAGAIN)
        self.assertEqual(len(queue.reap(4)), 4)

    def test_writing_and_errors(self):
        queue = self.queue()
        queue.submit([(self.file.extent(b"written", 100), "a"), (self.file.extent(b"too", 200), "b")], write=True)
        self.assertEqual(sorted((done.tag, done.bytes) for done in queue.reap(2)), [("a", 7), ("b", 3)])
        self.assertEqual(self.file.read(7, 100), b"written")
        with self.assertRaises(nacre.UnusableMemory):
            queue.submit([(self.file.extent(b"fixed"), None)])
        with self.assertRaises(ValueError):
            queue.submit([(self.file.extent(bytearray(10), rows=2, length=5, file_stride=7), None)])
        with nacre.open(self.path("data"), "wb") as other:
            queue.submit([(other.extent(bytearray(5)), "not readable")])
        (done,) = queue.reap(1)
        self.assertEqual(done.error.errno, errno.EBADF)
        self.assertEqual(len(queue), 0)

    def test_the_words_of_an_error(self):
        queue, usual = self.queue(), os.strerror(errno.EBADF)
        with nacre.open(self.path("data"), "wb") as other:
            queue.submit([(self.file.extent(bytearray(5)), "good")])
            self.assertIsNone(queue.reap(1)[0].error)
            queue.submit((other.extent(bytearray(5)), "not readable") for _ in range(3))
        first, *others = (done.error.strerror for done in queue.reap(3))
        self.assertIn("the file is open for writing only", first)
        self.assertEqual(others, [usual, usual])

    def test_more_than_are_given_at_once(self):
        queue = self.queue()
        queue.submit(self.reads(9))
        self.assertEqual([len(queue.reap(6, most=most)) for most in (4, 100, 100)], [4, 5, 0])

    @needs_server
    def test_what_does_not_come(self):
        queue = self.queue()
        memory = bytearray(4096)
        self.file.read_into(memory)
        with Stopped():
            queue.submit([(self.file.extent(memory), "late")], timeout=0.2)
            self.assertEqual(queue.reap(1, timeout=0.01), [])
            (done,) = queue.reap(1)
            self.assertIsInstance(done.error, nacre.TimedOut)
            queue.submit([(self.file.extent(memory), "cancelled")])
            with self.assertRaises(BufferError):
                memory.append(1)
            queue.cancel()
            (done,) = queue.reap(1)
            self.assertIsInstance(done.error, nacre.Cancelled)
            memory.append(1)
            queue.submit(self.reads(10))
            queue.close()
        with self.assertRaises(nacre.Error):
            queue.submit(self.reads(1))

    @needs_server
    def test_an_interrupted_wait_loses_nothing(self):
        self.file.read_into(bytearray(4096))
        for seconds in (0.03, 0.25):  # in the call that gives the first one, and later
            queue = self.with_one_done(depth=2)
            with Stopped():
                queue.submit([(self.file.extent(bytearray(4096)), "late")])
                with self.assertRaises(KeyboardInterrupt), interrupted_after(seconds):
                    queue.reap(2)
                self.assertEqual(len(queue), 2)
                with self.assertRaisesRegex(nacre.Error, "room for 0"):
                    queue.submit(self.reads(1))
                self.assertEqual([done.tag for done in queue.reap(1, timeout=5)], ["done"])
            self.assertEqual([done.tag for done in queue.reap(1)], ["late"])

    @needs_server
    def test_a_cancelled_wait_loses_nothing(self):
        self.file.read_into(bytearray(4096))
        queue = self.with_one_done()

        async def work():
            with Stopped():
                queue.submit([(self.file.extent(bytearray(4096)), "late")])
                with self.assertRaises(asyncio.TimeoutError):
                    await asyncio.wait_for(queue.areap(2), 0.1)
                self.assertEqual(len(queue), 2)
                first = await asyncio.wait_for(queue.areap(1), 5)
            return first + await queue.areap(1)

        self.assertEqual([done.tag for done in asyncio.run(work())], ["done", "late"])
        self.assertEqual(len(queue), 0)

    def test_asyncio(self):
        queue = self.queue()

        async def work():
            queue.submit(self.reads(64))
            first = await queue.areap(32)
            return first + await queue.areap(64 - len(first)) if len(first) < 64 else first

        self.assertEqual(len(asyncio.run(work())), 64)

    def test_the_end_of_the_process_is_quiet(self):
        done = run_python(
            "import nacre, sys\n"
            "file = nacre.open(sys.argv[1])\n"
            "queue = nacre.Queue(file.client, 8)\n"
            "queue.submit([(file.extent(bytearray(100_000), i), i) for i in range(8)])\n",
            self.path("data"),
        )
        self.assertEqual((done.returncode, done.stdout), (0, ""), done.stderr)

    @needs_gpu
    def test_gpu_memory(self):
        memory = GpuMemory(8192)
        queue = self.queue()
        queue.submit([(self.file.extent(CudaArray(memory), 1000), None)])
        (done,) = queue.reap(1)
        self.assertEqual((done.bytes, done.error), (8192, None))
        self.assertEqual(memory.bytes(), self.data[1000:9192])


if __name__ == "__main__":
    unittest.main()
