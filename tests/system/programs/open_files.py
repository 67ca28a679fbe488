#!/usr/bin/env python3
"""Keeps COUNT files open at once, writes and reads through all of them, with half of the names removed. Usage: open_files.py DIRECTORY COUNT"""
import os
import pathlib
import resource
import sys


def main():
    directory, count = pathlib.Path(sys.argv[1]), int(sys.argv[2])
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY and hard < count + 100:
        sys.exit(f"this machine lets a process open {hard} files, {count} are wanted")
    resource.setrlimit(resource.RLIMIT_NOFILE, (count + 100, hard))
    directory.mkdir()
    descriptors = [os.open(directory / str(number), os.O_CREAT | os.O_RDWR, 0o644) for number in range(count)]
    for number, descriptor in enumerate(descriptors):
        os.write(descriptor, f"first {number}".encode())
    for number in range(0, count, 2):
        os.unlink(directory / str(number))
    for number, descriptor in enumerate(descriptors):
        os.pwrite(descriptor, b"then!", 0)
        expected = b"then!" + f"first {number}".encode()[5:]
        if os.pread(descriptor, 100, 0) != expected:
            sys.exit(f"file {number} reads {os.pread(descriptor, 100, 0)}, expected {expected}")
    if len(os.listdir(directory)) != count // 2:
        sys.exit(f"{len(os.listdir(directory))} names are left of {count // 2}")
    for descriptor in descriptors:
        os.close(descriptor)


if __name__ == "__main__":
    main()
