"""nacre.open and what it gives: contents, errors, bad use, lifetimes."""

import errno
import gc
import os
import signal
import threading
import time
import unittest
import warnings
import weakref

import numpy as np

import nacre

from .support import SERVER, OnlyDlpack, OnMount, Stopped, needs_server, run_python


#: Seconds. A read that a silent server has is over when the connection to it has been given up (libnacre(3), Deadlines).
BOUND = 60


class FilesTest(OnMount):
    def setUp(self):
        super().setUp()
        self.data = os.urandom(3_000_001)
        self.file = nacre.open(self.make("data", self.data))
        self.addCleanup(self.file.close)

    def test_versions_are_the_same(self):
        self.assertEqual(nacre.__version__, nacre.library_version())

    def test_reads_into_what_has_memory(self):
        whole = bytearray(len(self.data))
        self.assertEqual(self.file.read_into(whole), len(self.data))
        self.assertEqual(whole, self.data)
        floats = np.zeros((100, 7), np.float32)
        self.assertEqual(self.file.read_into(floats, 13), 2800)
        self.assertEqual(floats.tobytes(), self.data[13:2813])
        hidden = np.zeros(1000, np.uint8)
        self.assertEqual(self.file.read_into(OnlyDlpack(hidden), offset=5), 1000)
        self.assertEqual(hidden.tobytes(), self.data[5:1005])

    def test_reads_a_part_and_touches_nothing_else(self):
        memory = bytearray(b"\xa5" * 1000)
        self.assertEqual(self.file.read_into(memory, 77, 100, memory_offset=300), 100)
        self.assertEqual(memory, b"\xa5" * 300 + self.data[77:177] + b"\xa5" * 600)

    def test_the_end_of_the_file(self):
        memory = bytearray(b"\xa5" * 100)
        self.assertEqual(self.file.read_into(memory, len(self.data) - 10), 10)
        self.assertEqual(memory, self.data[-10:] + b"\xa5" * 90)
        self.assertEqual(self.file.read_into(memory, len(self.data) + 5), 0)
        self.assertEqual(self.file.read(100, len(self.data) - 3), self.data[-3:])
        self.assertEqual(self.file.read(offset=2_999_000), self.data[2_999_000:])
        self.assertEqual(self.file.read(), self.data)
        self.assertEqual(self.file.size, len(self.data))

    def test_memory_of_no_bytes(self):
        self.assertEqual(self.file.read_into(bytearray()), 0)
        self.assertEqual(self.file.read_into(np.zeros((0, 4))), 0)
        self.assertEqual(self.file.read(0), b"")

    def test_many_at_once(self):
        memories = [np.zeros(size, np.uint8) for size in (1, 0, 1000, 70_000)]
        results = self.file.readv((memory, 1000 * i) for i, memory in enumerate(memories))
        self.assertEqual([result.bytes for result in results], [1, 0, 1000, 70_000])
        self.assertEqual([result.error for result in results], [None] * 4)
        self.assertEqual(results[2].verified, "host")
        for i, memory in enumerate(memories):
            self.assertEqual(memory.tobytes(), self.data[1000 * i : 1000 * i + memory.size])

    def test_rows(self):
        memory = np.full((10, 8), 0xA5, np.uint8)
        with self.file.client.register(memory) as buffer:
            nacre.readv([self.file.extent(buffer, 100, 4, memory_offset=2, rows=10, file_stride=1000, buffer_stride=8)])
        for i in range(10):
            self.assertEqual(memory[i].tobytes(), b"\xa5" * 2 + self.data[100 + i * 1000 : 104 + i * 1000] + b"\xa5" * 2)

    def test_one_error_among_many_has_all_results(self):
        with self.file.client.register(bytearray(100)) as small:
            extents = [self.file.extent(bytearray(10)), self.file.extent(small, 0, 101)]
            with self.assertRaises(nacre.Error) as caught:
                nacre.readv(extents)
            self.assertEqual(caught.exception.errno, errno.EINVAL)
            self.assertIn("do not fit", caught.exception.strerror)
            self.assertEqual([result.bytes for result in caught.exception.results], [10, 0])
            self.assertIsNone(nacre.readv(extents, check=False)[0].error)

    def test_a_registered_buffer_is_used_often(self):
        memory = np.zeros(5000, np.uint8)
        with self.file.client.register(memory) as buffer:
            self.assertEqual((buffer.kind, buffer.gpu, buffer.size), ("host", None, 5000))
            for offset in range(0, 50_000, 5000):
                self.assertEqual(self.file.read_into(buffer, offset), 5000)
                self.assertEqual(memory.tobytes(), self.data[offset : offset + 5000])
        with self.assertRaisesRegex(nacre.Error, "closed") as caught:
            self.file.read_into(buffer)
        self.assertEqual(caught.exception.errno, errno.EBADF)

    def test_what_cannot_be_read_into_is_refused_before_anything_is_sent(self):
        square = np.zeros((100, 100), np.uint8)
        for memory in (square[:, 3], b"fixed", memoryview(bytearray(10))[::2]):
            with self.assertRaises(nacre.UnusableMemory):
                self.file.readv([(bytearray(10), 0), (memory, 0)])
        with self.file.client.register(b"fixed") as buffer, self.assertRaises(nacre.UnusableMemory):
            self.file.read_into(buffer)

    def test_two_extents_in_the_same_memory_are_refused(self):
        memory = bytearray(b"\xa5" * 100)
        with self.file.client.register(memory) as buffer:
            two = [self.file.extent(buffer, 0, 50, memory_offset=30), self.file.extent(buffer, 50, 50)]
            with self.assertRaisesRegex(nacre.Error, "same memory"):
                nacre.readv(two)
            self.assertEqual(memory, b"\xa5" * 100)
            other_way = [two[0]._replace(memory_offset=50), two[1]]
            self.assertEqual([result.bytes for result in nacre.readv(other_way)], [50, 50])
        self.assertEqual(memory, self.data[50:100] + self.data[:50])

    def test_numbers_that_are_none(self):
        for arguments in ((-1,), (1 << 63,), (0, -5)):
            with self.assertRaises(ValueError):
                self.file.read_into(bytearray(10), *arguments)
        with self.assertRaises(ValueError):
            self.file.read_into(bytearray(10), memory_offset=11)
        with self.assertRaises(ValueError):
            self.file.read_into(bytearray(10), timeout=0)
        with self.assertRaises(nacre.Error):
            self.file.read_into(bytearray(10), 0, 11)

    def test_a_file_that_is_cut_short_meanwhile(self):
        memory = bytearray(b"\xa5" * 2000)
        os.truncate(self.path("data"), 1500)
        self.assertEqual(self.file.read_into(memory, 1000), 500)
        self.assertEqual(memory, self.data[1000:1500] + b"\xa5" * 1500)

    def test_a_submitted_read_keeps_its_memory(self):
        memory = np.zeros(2_000_000, np.uint8)
        gone = weakref.ref(memory)
        read = nacre.submit([self.file.extent(memory)])
        del memory
        gc.collect()
        if not read._pending.done:  # it may have ended, but nobody has looked
            self.assertIsNotNone(gone())
        self.assertEqual(read.result()[0].bytes, 2_000_000)
        self.assertTrue(read.done())
        gc.collect()
        self.assertIsNone(gone())

    def test_a_dropped_read_lets_go_of_its_memory(self):
        memory = bytearray(1_000_000)
        nacre.submit([self.file.extent(memory)])
        deadline = time.monotonic() + BOUND
        while True:
            try:
                memory.append(1)  # a BufferError while it is in use
                break
            except BufferError:
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.01)

    def test_threads(self):
        wrong = []

        def read(number):
            memory = bytearray(10_000)
            for i in range(20):
                offset = (number * 20 + i) * 1000
                self.file.read_into(memory, offset)
                if memory != self.data[offset : offset + 10_000]:
                    wrong.append(offset)

        threads = [threading.Thread(target=read, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])

    def test_closed(self):
        self.file.close()
        self.file.close()
        for use in (lambda: self.file.read_into(bytearray(3)), lambda: self.file.read_into(bytearray()), lambda: self.file.size):
            with self.assertRaises(nacre.Error) as caught:
                use()
            self.assertEqual(caught.exception.errno, errno.EBADF)

    def test_a_forgotten_file_is_closed_with_a_warning(self):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            nacre.open(self.path("data"))
            gc.collect()
        self.assertIn("unclosed <nacre.File", str(said[0].message))


class WritingTest(OnMount):
    def test_what_is_written_is_there(self):
        content = os.urandom(1_234_567)
        with nacre.open(self.path("new"), "wb") as file:
            self.assertEqual(file.write(content), len(content))
            self.assertEqual(file.write(np.frombuffer(b"0123456789", np.uint8), 5, 4, memory_offset=3), 4)
            self.assertEqual(file.write(b""), 0)
            file.sync()
        self.assertEqual(self.content("new"), content[:5] + b"3456" + content[9:])

    def test_appending(self):
        self.make("log", b"one ")
        with nacre.open(self.path("log"), "ab") as file:
            file.write(b"two ")
            file.write(b"three", 0)
        self.assertEqual(self.content("log"), b"one two three")

    def test_modes(self):
        self.make("there", b"content")
        with self.assertRaises(FileExistsError):
            nacre.open(self.path("there"), "xb")
        with nacre.open(self.path("there"), "r+b") as file:
            file.write(b"C")
            self.assertEqual(file.read(), b"Content")
        with nacre.open(self.path("there"), "wb") as file:
            with self.assertRaises(nacre.Error) as caught:
                file.read(1)
            self.assertEqual(caught.exception.errno, errno.EBADF)
        self.assertEqual(self.content("there"), b"")
        for mode in ("r", "rb", "br"):
            nacre.open(self.path("there"), mode).close()
        for mode in ("rt", "", "rw", "b"):
            with self.assertRaises(ValueError):
                nacre.open(self.path("there"), mode)

    def test_writing_what_is_not_contiguous_is_refused(self):
        with nacre.open(self.path("new"), "wb") as file:
            with self.assertRaises(nacre.UnusableMemory):
                file.write(np.zeros((4, 4))[:, 1])
            with self.assertRaises(ValueError):
                file.write(b"abc", 0, 4)
        self.assertEqual(self.content("new"), b"")


class ErrorsTest(OnMount):
    def test_python_classes(self):
        with self.assertRaises(FileNotFoundError) as caught:
            nacre.open(self.path("nowhere"))
        self.assertIsInstance(caught.exception, nacre.Error)
        self.assertEqual(caught.exception.errno, errno.ENOENT)
        self.assertIn("nowhere", str(caught.exception))
        with self.assertRaises(IsADirectoryError):
            nacre.open(self.directory)
        with self.assertRaises(nacre.Error) as caught:
            nacre.open("/proc/self/status")
        self.assertEqual(caught.exception.errno, errno.ENOTSUP)
        self.assertIn("not on a Nacre mount", caught.exception.strerror)
        with self.assertRaises(FileNotFoundError):
            nacre.open("/nowhere/at/all", "wb")

    def test_a_client_of_ones_own(self):
        path = self.make("data", b"content")
        with nacre.Client.from_path(self.directory, name="a test", soft=True) as client:
            file = client.open(path)
            self.assertEqual(file.read(), b"content")
            with self.assertRaisesRegex(nacre.Error, "another client"):
                with nacre.open(path) as other, client.register(bytearray(3)) as buffer:
                    other.read_into(buffer)
        with self.assertRaises(nacre.Error):
            file.read_into(bytearray(3))
        file.close()
        with self.assertRaises(nacre.Error):
            client.open(path)
        with self.assertRaisesRegex(nacre.Error, "transport"):
            nacre.Client.from_path(self.directory, transport="pigeon")

    def test_open_connects_again_after_disconnect(self):
        path = self.make("data", b"content")
        with nacre.open(path) as file:
            nacre.disconnect()
            with self.assertRaises(nacre.Error):
                file.read_into(bytearray(3))
        with nacre.open(path) as file:
            self.assertEqual(file.read(), b"content")

    def test_a_forked_child_is_told(self):
        program = """
import nacre, os, sys
file = nacre.open(sys.argv[1])
assert file.read() == b"content"
if os.fork() == 0:
    try:
        file.read_into(bytearray(3))
        print("no error")
    except PermissionError as error:
        print(error.strerror)
    try:
        nacre.open(sys.argv[1])
        print("no error")
    except PermissionError as error:
        print(error.strerror)
    sys.stdout.flush()
    os._exit(0)
print(os.wait()[1])
assert file.read() == b"content"
file.close()
"""
        done = run_python(program, self.make("data", b"content"))
        self.assertEqual(done.returncode, 0, done.stderr)
        first, second, status = done.stdout.splitlines()
        self.assertIn("fork", first)
        self.assertIn("fork", second)
        self.assertEqual(status, "0")

    def test_no_library_is_an_import_error(self):
        program = "import os; os.environ['NACRE_LIBRARY'] = '/nowhere.so'\nimport nacre\nnacre.library_version()"
        done = run_python(program)
        self.assertIn("ImportError: no libnacre: cannot open /nowhere.so", done.stderr)


@needs_server
class StoppedServerTest(OnMount):
    """A server that stands still: waits end by their time, by cancellation, by Ctrl-C and by the end of the program."""

    def setUp(self):
        super().setUp()
        self.data = os.urandom(1_000_000)
        self.file = nacre.open(self.make("data", self.data))
        self.addCleanup(self.file.close)
        self.file.read(10)

    def test_a_timeout(self):
        memory = bytearray(1_000_000)
        with Stopped():
            with self.assertRaises(TimeoutError) as caught:
                self.file.read_into(memory, timeout=0.3)
            memory.append(1)  # nobody uses it any more
        self.assertEqual(caught.exception.errno, errno.ETIMEDOUT)
        self.assertEqual(self.file.read_into(memory), 1_000_000)

    def test_cancelling(self):
        memory = bytearray(1_000_000)
        with Stopped():
            read = nacre.submit([self.file.extent(memory)])
            self.assertFalse(read.wait(0.1))
            self.assertFalse(read.done())
            with self.assertRaises(nacre.TimedOut):
                read.result(0.1)
            read.cancel()
            self.assertTrue(read.wait(BOUND))
            with self.assertRaises(nacre.Cancelled):
                read.result()
            memory.append(1)

    def test_a_dropped_read_is_cancelled(self):
        memory = bytearray(1_000_000)
        with Stopped():
            nacre.submit([self.file.extent(memory)])
            deadline = time.monotonic() + BOUND
            while True:
                try:
                    memory.append(1)
                    break
                except BufferError:
                    self.assertLess(time.monotonic(), deadline)
                    time.sleep(0.01)

    def test_more_waits_than_threads(self):
        """Those that cannot end do not keep the others from being told."""
        told = threading.Event()
        with Stopped():
            stuck = [nacre.submit([self.file.extent(bytearray(10))]) for _ in range(40)]
            for read in stuck:
                read.on_end(lambda: None)
            last = nacre.submit([self.file.extent(bytearray(10))])
            last.on_end(told.set)
            self.assertFalse(told.wait(0.3))
            last.cancel()
            self.assertTrue(told.wait(BOUND))
            self.assertFalse(stuck[0].done())
        for read in stuck:
            self.assertEqual(read.result()[0].bytes, 10)

    def test_ctrl_c_and_the_end_of_a_program(self):
        program = """
import nacre, os, signal, subprocess, sys, threading
from tests.support import stop
file = nacre.open(sys.argv[1])
file.read(10)
server = int(os.environ["NACRE_TEST_SERVER_PID"])
stop(server)
subprocess.Popen(["sh", "-c", f"sleep 8; kill -CONT {server}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
memory = bytearray(1000)
try:
    file.read_into(memory)
except KeyboardInterrupt:
    memory.append(1)
    print("interrupted", flush=True)
left = nacre.submit([file.extent(bytearray(1000))])
"""
        try:
            done = run_python(program, self.path("data"), timeout=60)
        finally:
            os.kill(SERVER, signal.SIGCONT)
        self.assertIn("interrupted", done.stdout, done.stderr)
        self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    unittest.main()
