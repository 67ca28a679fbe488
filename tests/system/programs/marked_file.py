#!/usr/bin/env python3
"""A file of 1 MiB in which every 64 bytes name the file and the place, so that a piece of it can be found on a disk.

marked_file.py write PATH NUMBER      marked_file.py check PATH NUMBER
marked_file.py find NUMBER DIRECTORY  prints where on a disk a piece of it lies: a file below the directory, and the offset in it
marked_file.py flip FILE OFFSET       changes one bit there
"""
import mmap
import os
import sys

PIECES = (1 << 20) // 64


def marker(number, index):
    return f"<nacre marked file {number:06} piece {index:06}>".ljust(63, ".") + "\n"


def content(number):
    return "".join(marker(number, index) for index in range(PIECES)).encode()


def find(number, directory):
    piece = marker(number, 100).encode()
    for below, _, names in os.walk(directory):
        for path in (os.path.join(below, name) for name in sorted(names)):
            if not os.path.isfile(path) or os.path.getsize(path) == 0 or path.endswith(".log"):
                continue
            with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as bytes_of:
                at = bytes_of.find(piece)
            if at >= 0:
                return f"{path} {at}"
    sys.exit(f"no piece of file {number} lies below {directory}")


def flip(path, offset):
    with open(path, "r+b") as file:
        file.seek(offset)
        old = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([old ^ 1]))
        file.flush()
        os.fsync(file.fileno())


def main():
    command, *arguments = sys.argv[1:]
    if command == "flip":
        flip(arguments[0], int(arguments[1]))
        return
    if command == "find":
        print(find(int(arguments[0]), arguments[1]))
        return
    path, number = arguments[0], int(arguments[1])
    if command == "write":
        with open(path, "wb") as file:
            file.write(content(number))
            file.flush()
            os.fsync(file.fileno())
        return
    with open(path, "rb") as file:
        if file.read() != content(number):
            sys.exit(f"{path} has the wrong content")


if __name__ == "__main__":
    try:
        main()
    except OSError as error:
        sys.exit(f"marked_file: {error}")
