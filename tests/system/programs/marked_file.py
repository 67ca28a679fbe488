#!/usr/bin/env python3
"""A file of 1 MiB in which every 64 bytes name the file and the place, so that a piece of it can be found on a disk.

marked_file.py write PATH NUMBER      marked_file.py check PATH NUMBER      marked_file.py marker NUMBER INDEX
"""
import os
import sys

PIECES = (1 << 20) // 64


def marker(number, index):
    return f"<nacre marked file {number:06} piece {index:06}>".ljust(63, ".") + "\n"


def content(number):
    return "".join(marker(number, index) for index in range(PIECES)).encode()


def main():
    command, *arguments = sys.argv[1:]
    if command == "marker":
        print(marker(int(arguments[0]), int(arguments[1])).strip())
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
