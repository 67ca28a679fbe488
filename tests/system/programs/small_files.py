#!/usr/bin/env python3
"""Makes COUNT files of SIZE bytes, a hundred in each directory, and reads them. Usage: small_files.py DIRECTORY COUNT SIZE"""
import os
import pathlib
import sys


def main():
    directory, count, size = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    rest = os.urandom(size - 8)
    paths = [directory / f"{number // 100}" / f"{number}" for number in range(count)]
    for number, path in enumerate(paths):
        if number % 100 == 0:
            path.parent.mkdir(parents=True)
        path.write_bytes(number.to_bytes(8, "little") + rest)
    for number, path in enumerate(paths):
        if path.read_bytes() != number.to_bytes(8, "little") + rest:
            sys.exit(f"{path} has other bytes than were written")


if __name__ == "__main__":
    main()
