#!/usr/bin/env python3
"""Maps a file shared and private, resizes it, and lets two processes count in it; checks what read() and a new mapping see."""
import mmap
import multiprocessing
import os
import pathlib
import struct
import sys

PAGE = mmap.PAGESIZE
COUNTS = 2000


def check(condition, what):
    if not condition:
        sys.exit(f"mmap_program: {what}")


def pattern(size):
    return bytes((place * 31 + place // 251) % 256 for place in range(size))


def count(path, slot):
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        for value in range(1, COUNTS + 1):
            memory[slot * 8:slot * 8 + 8] = struct.pack("<Q", value)


def main():
    directory = pathlib.Path(sys.argv[1])
    directory.mkdir()
    path, size = directory / "file", 300 * PAGE + 100
    content = pattern(size)

    with open(path, "w+b") as file:
        file.truncate(size)
        with mmap.mmap(file.fileno(), size) as memory:
            memory[:] = content
            check(path.read_bytes() == content, "read() does not see what a shared mapping holds")
            memory.flush()
    check(path.read_bytes() == content, "what was mapped and flushed is not in the file")

    with open(path, "r+b") as file:
        with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) as memory:
            memory[:100] = b"p" * 100
        check(path.read_bytes() == content, "a private mapping changed the file")
        with mmap.mmap(file.fileno(), size) as memory:
            file.truncate(size + 10 * PAGE)
            memory.resize(size + 10 * PAGE)
            check(memory[size:] == bytes(10 * PAGE), "a grown file is not zero at its end")
            file.seek(5 * PAGE)
            file.write(b"written")
            file.flush()
            check(memory[5 * PAGE:5 * PAGE + 7] == b"written", "a mapping does not see what write() wrote")
            check(memory.find(b"written") == 5 * PAGE, "find")

    counters = directory / "counters"
    counters.write_bytes(bytes(PAGE))
    processes = [multiprocessing.Process(target=count, args=(counters, slot)) for slot in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    check(struct.unpack("<QQ", counters.read_bytes()[:16]) == (COUNTS, COUNTS), "two processes' counts in one page got lost")
    os.unlink(counters)


if __name__ == "__main__":
    main()
