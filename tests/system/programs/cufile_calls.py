#!/usr/bin/env python3
"""Calls cuFile as programs do, and compares every byte: of files on a Nacre mount and of others.

    cufile_calls.py ON_THE_MOUNT ELSEWHERE

Both are directories. The library is the libcufile.so.0 that the loader finds (LD_PRELOAD, LD_LIBRARY_PATH); the driver is what
NACRE_CUDA_LIBRARY names, else libcuda.so.1. Prints a line for each part that held; exit status 1 at the first that did not.
"""

import ctypes
import os
import resource
import signal
import sys
import threading
import time
from ctypes import POINTER, byref, c_char_p, c_int, c_long, c_longlong, c_size_t, c_ssize_t, c_uint, c_uint64, c_void_p

MiB = 1 << 20
CANARY = 0xA5

cuda = ctypes.CDLL(os.environ.get("NACRE_CUDA_LIBRARY", "libcuda.so.1"), mode=ctypes.RTLD_GLOBAL)
cufile = ctypes.CDLL("libcufile.so.0", use_errno=True)


class Error(ctypes.Structure):
    _fields_ = [("err", c_int), ("cu_err", c_int)]


class Where(ctypes.Union):
    _fields_ = [("fd", c_int), ("handle", c_void_p)]


class Descriptor(ctypes.Structure):
    _fields_ = [("type", c_int), ("handle", Where), ("fs_ops", c_void_p)]


class Entry(ctypes.Structure):
    _fields_ = [("mode", c_int), ("base", c_void_p), ("file_offset", c_long), ("memory_offset", c_long), ("size", c_size_t)]
    _fields_ += [("handle", c_void_p), ("opcode", c_int), ("cookie", c_void_p)]


class Event(ctypes.Structure):
    _fields_ = [("cookie", c_void_p), ("status", c_int), ("ret", c_size_t)]


class Time(ctypes.Structure):
    _fields_ = [("seconds", c_long), ("nanoseconds", c_long)]


COMPLETE, FAILED = 0x10, 0x40
EIO = 5
NAMES = """BatchIOCancel BatchIODestroy BatchIOGetStatus BatchIOSetUp BatchIOSubmit BufDeregister BufRegister DriverClose DriverClose_v2
DriverGetProperties DriverOpen DriverSetMaxCacheSize DriverSetMaxDirectIOSize DriverSetMaxPinnedMemSize DriverSetPollMode GetBARSizeInKB
GetParameterBool GetParameterMinMaxValue GetParameterPosixPoolSlabArray GetParameterSizeT GetParameterString GetStatsL1 GetStatsL2 GetStatsL3
GetStatsLevel GetVersion HandleDeregister HandleRegister Read ReadAsync SetParameterBool SetParameterPosixPoolSlabArray SetParameterSizeT
SetParameterString SetStatsLevel StatsReset StatsStart StatsStop StreamDeregister StreamRegister UseCount Write WriteAsync
DriverSetP2PFlags DriverGetP2PFlags ExportPCIeTopology""".split()
for name in NAMES:
    getattr(cufile, "cuFile" + name).restype = Error  # AttributeError: it is missing
cufile.cuFileUseCount.restype = c_long
cufile.cuFileHandleDeregister.restype = cufile.cuFileBatchIODestroy.restype = None
cufile.cuFileHandleDeregister.argtypes = cufile.cuFileBatchIODestroy.argtypes = [c_void_p]
cufile.cuFileRead.restype = cufile.cuFileWrite.restype = c_ssize_t
cufile.cuFileRead.argtypes = cufile.cuFileWrite.argtypes = [c_void_p, c_void_p, c_size_t, c_long, c_long]
cufile.cuFileBufRegister.argtypes = [c_void_p, c_size_t, c_int]
cufile.cuFileBufDeregister.argtypes = [c_void_p]
cufile.cuFileBatchIOSubmit.argtypes = [c_void_p, c_uint, POINTER(Entry), c_uint]
cufile.cuFileBatchIOGetStatus.argtypes = [c_void_p, c_uint, POINTER(c_uint), POINTER(Event), POINTER(Time)]
cufile.cuFileBatchIOCancel.argtypes = [c_void_p]
for name in ("cuFileReadAsync", "cuFileWriteAsync"):
    pointers = [POINTER(c_size_t), POINTER(c_longlong), POINTER(c_longlong), POINTER(c_ssize_t)]
    getattr(cufile, name).argtypes = [c_void_p, c_void_p, *pointers, c_void_p]


def expect(what, got, wanted):
    if got != wanted:
        sys.exit(f"{what}: {got!r} instead of {wanted!r}")


def driver(name, *arguments):
    expect(name, getattr(cuda, name)(*arguments), 0)


class Memory:
    """Of the GPU, full of canaries."""

    def __init__(self, size):
        self.size, self.address = size, c_uint64()
        driver("cuMemAlloc_v2", byref(self.address), c_size_t(size))
        self.put(bytes([CANARY]) * size)

    def put(self, content):
        driver("cuMemcpyHtoDAsync_v2", self.address, content, c_size_t(len(content)), None)
        driver("cuStreamSynchronize", None)

    def get(self):
        content = ctypes.create_string_buffer(self.size)
        driver("cuMemcpyDtoHAsync_v2", content, self.address, c_size_t(self.size), None)
        driver("cuStreamSynchronize", None)
        return content.raw

    def at(self, offset=0):
        return self.address.value + offset


class File:
    def __init__(self, path, flags=os.O_RDWR):
        self.fd, self.handle = os.open(path, flags), c_void_p()
        descriptor = Descriptor(1, Where(fd=self.fd), None)
        expect(f"registering {path}", cufile.cuFileHandleRegister(byref(self.handle), byref(descriptor)).err, 0)

    def close(self):
        cufile.cuFileHandleDeregister(self.handle)
        os.close(self.fd)

    def read(self, base, size, offset=0, memory_offset=0):
        return cufile.cuFileRead(self.handle, base, size, offset, memory_offset)

    def write(self, base, size, offset=0, memory_offset=0):
        return cufile.cuFileWrite(self.handle, base, size, offset, memory_offset)


def made(directory, name, size):
    path, content = os.path.join(directory, name), os.urandom(size)
    with open(path, "wb") as out:
        out.write(content)
    return path, content


def fails(what, result, error):
    expect(what, result, -1)
    expect(f"{what}: errno", ctypes.get_errno(), error)


def reads_and_writes(directory):
    path, content = made(directory, "rw", 5 * MiB + 123)
    file, memory = File(path), Memory(6 * MiB)
    expect("a read", file.read(memory.at(), 6 * MiB), len(content))
    expect("its bytes", memory.get(), content + bytes([CANARY]) * (6 * MiB - len(content)))
    expect("a read in the middle", file.read(memory.at(), 1000, 4097, 33), 1000)
    expect("its bytes", memory.get()[33:1033], content[4097:5097])
    expect("a read behind the end", file.read(memory.at(), 10, len(content) + 5), 0)
    expect("a read of nothing", file.read(memory.at(), 0), 0)
    expect("registering memory", cufile.cuFileBufRegister(memory.at(), MiB, 0).err, 0)
    expect("twice", cufile.cuFileBufRegister(memory.at(), MiB, 0).err, 5023)
    fails("beyond what is registered", file.read(memory.at(), MiB, 0, 1), 5017)
    expect("within", file.read(memory.at(), MiB - 1, 7, 1), MiB - 1)
    other = os.urandom(3 * MiB)
    memory.put(other)
    expect("a write", file.write(memory.at(MiB), 2 * MiB, 1001), 2 * MiB)
    expect("a write at the end", file.write(memory.at(), 5, len(content), 3), 5)
    wanted = content[:1001] + other[MiB : 3 * MiB] + content[1001 + 2 * MiB :] + other[3:8]
    with open(path, "rb") as seen:
        expect("the file", seen.read() == wanted, True)
    expect("memory that is not registered", cufile.cuFileBufDeregister(memory.at(5)).err, 5024)
    expect("deregistering", cufile.cuFileBufDeregister(memory.at()).err, 0)
    host = ctypes.create_string_buffer(1000)
    expect("a read into host memory", file.read(ctypes.addressof(host), 1000), 1000)
    expect("its bytes", host.raw, wanted[:1000])
    file.close()


def refusals(directory):
    path, _ = made(directory, "refused", 1000)
    memory = Memory(MiB)
    handle = c_void_p()

    def register(fd, kind=1):
        return cufile.cuFileHandleRegister(byref(handle), byref(Descriptor(kind, Where(fd=fd), None))).err

    expect("no descriptor", register(-1), 5022)
    expect("another kind of handle", register(0, 3), 5008)
    directory_fd = os.open(directory, os.O_RDONLY)
    expect("a directory", register(directory_fd), 5018)
    appending = os.open(path, os.O_WRONLY | os.O_APPEND)
    expect("a file for appending", register(appending), 5019)
    file = File(path, os.O_RDONLY)
    expect("the same again", register(file.fd), 5028)
    fails("a write to a file for reading", file.write(memory.at(), 10), 5)
    fails("a negative offset", file.read(memory.at(), 10, -1), 5022)
    fails("no memory", file.read(None, 10), 22)
    gone = file.handle
    file.close()
    fails("a file that was deregistered", cufile.cuFileRead(gone, memory.at(), 10, 0, 0), 5027)
    fails("no file", cufile.cuFileRead(None, memory.at(), 10, 0, 0), 22)
    os.close(directory_fd)
    os.close(appending)


def batches(directory):
    count, step = 128, 20_000
    path, content = made(directory, "batch", count * step)
    file, memory = File(path), Memory(count * step)
    batch = c_void_p()
    expect("too large a batch", cufile.cuFileBatchIOSetUp(byref(batch), 129).err, 5022)
    expect("a batch", cufile.cuFileBatchIOSetUp(byref(batch), count).err, 0)
    entries = (Entry * count)()
    for i in range(count):
        entries[i] = Entry(1, memory.at(), i * step, (count - 1 - i) * step, step, file.handle, 0, i + 1)
    expect("submitting", cufile.cuFileBatchIOSubmit(batch, count, entries, 0).err, 0)
    expect("more than there is room for", cufile.cuFileBatchIOSubmit(batch, 1, entries, 0).err, 5040)
    seen, events = set(), (Event * count)()
    while len(seen) < count:
        room = c_uint(50)
        expect("reaping", cufile.cuFileBatchIOGetStatus(batch, 1, byref(room), events, byref(Time(30, 0))).err, 0)
        expect("something came", room.value >= 1, True)
        for event in events[: room.value]:
            expect("an entry", (event.status, event.ret), (COMPLETE, step))
            seen.add(event.cookie)
    pieces = [content[at : at + step] for at in range(0, len(content), step)]
    expect("the bytes", memory.get() == b"".join(reversed(pieces)), True)
    entries[0] = Entry(1, memory.at(), 0, 0, 100, file.handle, 1, 7)
    entries[1] = Entry(1, memory.at(), -5, 0, 100, file.handle, 0, 8)
    entries[2] = Entry(1, memory.at(), count * step - 10, 0, 100, file.handle, 0, 9)
    expect("submitting three", cufile.cuFileBatchIOSubmit(batch, 3, entries, 0).err, 0)
    room = c_uint(3)
    expect("reaping", cufile.cuFileBatchIOGetStatus(batch, 3, byref(room), events, None).err, 0)
    found = {event.cookie: (event.status, ctypes.c_ssize_t(event.ret).value) for event in events[: room.value]}
    expect("a write, a mistake and a short read", found, {7: (COMPLETE, 100), 8: (FAILED, -5022), 9: (COMPLETE, 10)})
    room = c_uint(3)
    expect("reaping nothing", cufile.cuFileBatchIOGetStatus(batch, 0, byref(room), events, None).err, 0)
    expect("of which there is none", room.value, 0)
    for _ in range(2):  # what was cancelled is over: no event tells of it, and there is room for as much again
        for i in range(count):
            entries[i] = Entry(1, memory.at(), i * step, i * step, step, file.handle, 0, i + 1)
        expect("submitting as many as there is room for", cufile.cuFileBatchIOSubmit(batch, count, entries, 0).err, 0)
        expect("cancelling", cufile.cuFileBatchIOCancel(batch).err, 0)
        room = c_uint(count)
        expect("reaping", cufile.cuFileBatchIOGetStatus(batch, count, byref(room), events, None).err, 0)
        expect("what was cancelled", room.value, 0)
    cufile.cuFileBatchIODestroy(batch)
    expect("a batch that is gone", cufile.cuFileBatchIOSubmit(batch, 1, entries, 0).err, 5040)
    file.close()


def submitted(entries, without_descriptors=False):
    """What becomes of these, by their numbers: status, and bytes or an error."""
    count, batch, events = len(entries), c_void_p(), (Event * len(entries))()
    expect("a batch", cufile.cuFileBatchIOSetUp(byref(batch), count).err, 0)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    if without_descriptors:
        lowest = os.dup(0)
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limit[1]))
    expect("submitting", cufile.cuFileBatchIOSubmit(batch, count, (Entry * count)(*entries), 0).err, 0)
    room = c_uint(count)
    expect("reaping", cufile.cuFileBatchIOGetStatus(batch, count, byref(room), events, byref(Time(30, 0))).err, 0)
    resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    cufile.cuFileBatchIODestroy(batch)
    return {event.cookie: (event.status, ctypes.c_ssize_t(event.ret).value) for event in events[: room.value]}


def batches_to_stable_storage(directory):
    path, _ = made(directory, "synced", MiB)
    memory, program = Memory(MiB), ctypes.CDLL(None)
    if not hasattr(program, "test_syncs"):
        return  # nobody counts
    for flags, syncs in ((0, 0), (os.O_DSYNC, 1), (os.O_SYNC, 1)):
        file = File(path, os.O_RDWR | flags)
        entries = [Entry(1, memory.at(), i * 1000, i * 1000, 1000, file.handle, i % 2, i + 1) for i in range(6)]
        before = program.test_syncs()
        expect("reads and writes", submitted(entries), {number: (COMPLETE, 1000) for number in range(1, 7)})
        expect(f"syncs with flags {flags:#o}", program.test_syncs() - before, syncs)
        program.test_fail_syncs(EIO)
        wrong = (FAILED, -EIO) if syncs else (COMPLETE, 1000)
        wanted = {number: wrong if number % 2 == 0 else (COMPLETE, 1000) for number in range(1, 7)}
        expect(f"writes whose sync fails, with flags {flags:#o}", submitted(entries), wanted)
        program.test_fail_syncs(0)
        file.close()


def batches_without_descriptors(directory):
    count, step = 16, MiB // 4
    path, content = made(directory, "few", count * step)
    file, memory = File(path), Memory(count * step)
    expect("a read", file.read(memory.at(), count * step), count * step)  # what it takes of descriptors is there now
    memory.put(bytes([CANARY]) * count * step)
    entries = [Entry(1, memory.at(), i * step, i * step, step, file.handle, 0, i + 1) for i in range(count)]
    expect("reads", submitted(entries, without_descriptors=True), {i + 1: (COMPLETE, step) for i in range(count)})
    expect("the bytes", memory.get() == content, True)
    file.close()


def streams(directory):
    path, content = made(directory, "stream", 3 * MiB)
    file, memory, stream = File(path), Memory(3 * MiB), c_void_p()
    driver("cuStreamCreate", byref(stream), c_uint(1))
    flag = c_void_p()
    driver("cuMemHostAlloc", byref(flag), c_size_t(64), c_uint(1))
    word = ctypes.cast(flag, POINTER(ctypes.c_uint32))
    size, offset, memory_offset, done = c_size_t(0), c_longlong(0), c_longlong(0), c_ssize_t(-77)
    word[0] = 0
    driver("cuStreamWaitValue32_v2", stream, c_uint64(flag.value), ctypes.c_uint32(1), c_uint(0))
    pointers = (byref(size), byref(offset), byref(memory_offset), byref(done))
    expect("a read in stream order", cufile.cuFileReadAsync(file.handle, memory.at(), *pointers, stream).err, 0)
    out = c_ssize_t(-77)
    whole = (byref(c_size_t(3 * MiB)), byref(c_longlong(MiB)), byref(c_longlong(0)), byref(out))
    expect("a write behind it", cufile.cuFileWriteAsync(file.handle, memory.at(), *whole, stream).err, 0)
    time.sleep(0.2)
    expect("neither has begun", (done.value, out.value), (-77, -77))
    size.value, offset.value, memory_offset.value = MiB, 5, 9  # what counts is what they are when the stream gets there
    word[0] = 1
    driver("cuStreamSynchronize", stream)
    expect("both are done", (done.value, out.value), (MiB, 3 * MiB))
    in_memory = bytes([CANARY]) * 9 + content[5 : 5 + MiB] + bytes([CANARY]) * (2 * MiB - 9)
    expect("the memory", memory.get() == in_memory, True)
    with open(path, "rb") as seen:
        expect("the file", seen.read() == content[:MiB] + in_memory, True)
    offset.value = -1
    expect("a mistake", cufile.cuFileReadAsync(file.handle, memory.at(), *pointers, stream).err, 0)
    driver("cuStreamSynchronize", stream)
    expect("is told in its place", done.value, -5022)
    driver("cuStreamDestroy_v2", stream)
    file.close()


def a_full_stream(directory):
    """More reads than CUDA takes at once, in a stream that stands still meanwhile."""
    count, step = 1500, 1000
    path, content = made(directory, "full", count * step)
    file, memory, stream, flag = File(path), Memory(count * step), c_void_p(), c_void_p()
    driver("cuStreamCreate", byref(stream), c_uint(1))
    driver("cuMemHostAlloc", byref(flag), c_size_t(64), c_uint(1))
    word = ctypes.cast(flag, POINTER(ctypes.c_uint32))
    word[0] = 0
    driver("cuStreamWaitValue32_v2", stream, c_uint64(flag.value), ctypes.c_uint32(1), c_uint(0))
    threading.Timer(0.5, lambda: word.__setitem__(0, 1)).start()
    signal.alarm(60)  # ends the program where it hangs
    reads = [(c_size_t(step), c_longlong(i * step), c_longlong(i * step), c_ssize_t(-77)) for i in range(count)]
    for read in reads:
        expect("a read", cufile.cuFileReadAsync(file.handle, memory.at(), *map(byref, read), stream).err, 0)
    driver("cuStreamSynchronize", stream)
    signal.alarm(0)
    expect("what was read", {read[3].value for read in reads}, {step})
    expect("the bytes", memory.get() == content, True)
    driver("cuStreamDestroy_v2", stream)
    file.close()


def threads(directory):
    size = 4 * MiB
    path, content = made(directory, "threads", size)
    file, wrong = File(path), []

    def work(seed):
        driver("cuCtxPushCurrent_v2", context)
        memory = Memory(100_000)
        for i in range(20):
            at = (seed * 7919 + i * 104729) % (size - 100_000)
            if file.read(memory.at(), 100_000, at) != 100_000 or memory.get() != content[at : at + 100_000]:
                wrong.append((seed, at))

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    expect("reads of eight threads", wrong, [])
    file.close()


def elsewhere(directory, flags):
    path, content = made(directory, "foreign", 5 * MiB + 7)
    file, memory = File(path, os.O_RDWR | flags), Memory(6 * MiB)
    expect("a read", file.read(memory.at(), 6 * MiB, 0, 3), len(content))
    expect("its bytes", memory.get()[3 : 3 + len(content)] == content, True)
    memory.put(b"other bytes")
    expect("a write", file.write(memory.at(), 11, 100), 11)
    with open(path, "rb") as seen:
        expect("the file", seen.read() == content[:100] + b"other bytes" + content[111:], True)
    host = ctypes.create_string_buffer(1001)
    expect("a read into host memory", file.read(ctypes.addressof(host), 999, 7, 1), 999)
    expect("its bytes", host.raw, b"\0" + content[7:100] + b"other bytes" + content[111:1006] + b"\0")
    done = []  # by a thread that has no context

    def work():
        done.extend((file.read(memory.at(), 100, 1000), file.write(memory.at(), 10, 2000, 5)))

    worker = threading.Thread(target=work)
    worker.start()
    worker.join()
    expect("a read and a write of another thread", done, [100, 10])
    expect("the bytes", memory.get()[:100], content[1000:1100])
    with open(path, "rb") as seen:
        expect("the file", seen.read()[2000:2011], content[1005:1015] + content[2010:2011])
    file.close()


on_the_mount, other = sys.argv[1:3]
driver("cuInit", c_uint(0))
context = c_void_p()
driver("cuDevicePrimaryCtxRetain", byref(context), c_int(0))
driver("cuCtxPushCurrent_v2", context)
version = c_int()
expect("the version", (cufile.cuFileGetVersion(byref(version)).err, version.value >= 1000), (0, True))
expect("opens", cufile.cuFileUseCount(), 0)
expect("opening", cufile.cuFileDriverOpen().err, 0)
text = ctypes.create_string_buffer(100)
cufile.cuFileGetParameterString.argtypes = [c_int, c_char_p, c_int]
expect("a setting", (cufile.cuFileGetParameterString(0, text, 100).err, text.value), (0, b"ERROR"))
of_batches = (batches, batches_to_stable_storage, batches_without_descriptors)
for part in (reads_and_writes, refusals, *of_batches, streams, a_full_stream, threads):
    part(on_the_mount)
    print(f"{part.__name__}: as they should be", flush=True)
for flags in (0, os.O_DIRECT, os.O_DIRECT | os.O_DSYNC):
    elsewhere(other, flags)
print("elsewhere: as it should be", flush=True)
left = File(os.path.join(on_the_mount, "rw"))
expect("opens", cufile.cuFileUseCount(), 1)
expect("closing", cufile.cuFileDriverClose_v2().err, 0)
expect("once too often", cufile.cuFileDriverClose_v2().err, 5001)
fails("a file of before", left.read(0x1000, 10), 5027)
again = File(os.path.join(on_the_mount, "batch"))  # and ends without closing anything
