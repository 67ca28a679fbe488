#!/usr/bin/env python3
"""One process that works on two mounts of one filesystem, for bench/mounts. A wrong answer ends it with exit status 1.

    two_mounts.py turns DIRECTORY DIRECTORY CYCLES         operations a second; each sees what the one before has done through the other mount
    two_mounts.py own_file DIRECTORY DIRECTORY WRITES      writes of 4 KiB a second, through one mount, into a file in a directory where both make files
    two_mounts.py appends DIRECTORY DIRECTORY RECORDS      records of 512 bytes a second, through both mounts by turns, at the end of one file
    two_mounts.py first FROM TO BYTES                      ms from the open to the first byte, through TO, of a file just written through FROM
    two_mounts.py rate FROM TO BYTES                       MB/s of reading that file
"""
import os
import pathlib
import sys
import time

BLOCK = 1 << 20


def check(holds, what):
    if not holds:
        sys.exit(f"two_mounts: a stale answer: {what}")


def write(path, data, flags):
    fd = os.open(path, os.O_WRONLY | flags, 0o644)
    check(os.write(fd, data) == len(data), f"{path}: a short write")
    os.close(fd)


def is_missing(path):
    try:
        os.stat(path)
        return False
    except FileNotFoundError:
        return True


def cycle(one, other, number):
    """Eight operations on one file, by turns; returns their number."""
    old, new, data = f"file{number}", f"renamed{number}", b"%0100d" % number
    write(one / old, data, os.O_CREAT | os.O_EXCL)
    check((other / old).stat().st_size == 100, f"the size of {old} after its creation")
    write(one / old, data, os.O_APPEND)
    check((other / old).read_bytes() == 2 * data, f"the bytes of {old} after an append")
    os.rename(one / old, one / new)
    check(is_missing(other / old), f"{old} is there after its rename")
    os.unlink(other / new)
    check(is_missing(one / new), f"{new} is there after its removal")
    return 8


def turns(one, other, cycles):
    start, done = time.monotonic(), 0
    for number in range(cycles):
        done += cycle(*((one, other) if number % 2 == 0 else (other, one)), number)
    return done / (time.monotonic() - start)


WRITE, OTHERS_EVERY = 4096, 500  # bytes of a write; writes between two files that the other mount makes


def own_file(one, other, writes):
    """Writes a second; afterwards the other mount sees all of them."""
    for directory in (one, other):
        write(directory / f"made-by-{directory.parent.name}", b"", os.O_CREAT)
    parts = [b"%08d" % number * (WRITE // 8) for number in range(writes)]
    fd = os.open(one / "own", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    start = time.monotonic()
    for number, part in enumerate(parts):
        check(os.pwrite(fd, part, number * WRITE) == WRITE, "a short write")
        if number % OTHERS_EVERY == OTHERS_EVERY - 1:
            write(other / f"file{number}", b"", os.O_CREAT)
    rate = writes / (time.monotonic() - start)
    check((other / "own").read_bytes() == b"".join(parts), "the bytes of a file that is still open")
    os.close(fd)
    return rate


RECORD, LOG = 512, 1 << 20  # bytes of an appended record; of the log before


def appends(one, other, records):
    """Records a second; afterwards both mounts see all of them, in order."""
    parts = [b"%08d" % number * (RECORD // 8) for number in range(records)]
    write(one / "log", b"x" * LOG, os.O_CREAT | os.O_TRUNC)
    logs = [os.open(directory / "log", os.O_WRONLY | os.O_APPEND) for directory in (one, other)]
    start = time.monotonic()
    for number, part in enumerate(parts):
        check(os.write(logs[number % 2], part) == RECORD, "a short append")
    rate = records / (time.monotonic() - start)
    for directory, log in zip((one, other), logs):
        check((directory / "log").read_bytes() == b"x" * LOG + b"".join(parts), "the log after the appends")
        os.close(log)
    return rate


def block(number, stamp):
    return (b"%016d" % number + stamp).ljust(64, b".") * (BLOCK // 64)


def hand_over(source, target, size):
    """Seconds until the first byte and until the last."""
    stamp = os.urandom(16).hex().encode()  # other bytes than in the file of before
    with open(source / "handover", "wb", buffering=0) as file:
        for number in range(size // BLOCK):
            check(file.write(block(number, stamp)) == BLOCK, "a short write")
    buffer = bytearray(BLOCK)
    start, first = time.monotonic(), None
    with open(target / "handover", "rb", buffering=0) as file:
        for number in range(size // BLOCK):
            got = 0
            while got < BLOCK:
                part = file.readinto(memoryview(buffer)[got:BLOCK if got or number else 1])
                check(part > 0, f"the file ends in block {number}")
                first = first or time.monotonic() - start
                got += part
            check(bytes(buffer[:64]) == block(number, stamp)[:64] and buffer[:64] == buffer[-64:], f"block {number}")
        check(not file.read(1), "the file is too long")
    return first, time.monotonic() - start


def main():
    what, one, other, count = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]), int(sys.argv[4])
    rates = {"turns": turns, "own_file": own_file, "appends": appends}
    if what in rates:
        print(rates[what](one, other, count))
        return
    first, whole = hand_over(one, other, count)
    print(first * 1e3 if what == "first" else count / whole / 1e6)


if __name__ == "__main__":
    main()
