#!/usr/bin/env python3
"""Writes a file of SIZE MiB with a block pattern that names each place, reads it back and compares. Usage: large_file.py PATH MIB"""
import hashlib
import os
import sys

MIB = 1 << 20


def block(number):
    """One MiB that is different for every number, and cheap."""
    return hashlib.sha256(number.to_bytes(8, "little")).digest() * (MIB // 32)


def main():
    path, count = sys.argv[1], int(sys.argv[2])
    with open(path, "wb", buffering=0) as file:
        for number in range(count):
            written = file.write(block(number))
            if written != MIB:
                sys.exit(f"a write of 1 MiB at {number} MiB took {written} bytes")
        os.fsync(file.fileno())
    if os.stat(path).st_size != count * MIB:
        sys.exit(f"the size is {os.stat(path).st_size}, expected {count * MIB}")
    with open(path, "rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        for number in range(count):
            data = file.read(MIB)
            if data != block(number):
                sys.exit(f"the MiB at {number} MiB reads wrong ({len(data)} bytes)")
        if file.read(1):
            sys.exit("there is data behind the end")


if __name__ == "__main__":
    main()
