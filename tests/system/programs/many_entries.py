#!/usr/bin/env python3
"""Makes a directory of COUNT entries, lists it, looks some up, and removes it. Usage: many_entries.py DIRECTORY COUNT"""
import os
import pathlib
import random
import sys
import time


def main():
    directory, count = pathlib.Path(sys.argv[1]), int(sys.argv[2])
    directory.mkdir()
    clock = time.monotonic()
    for number in range(count):
        os.close(os.open(directory / f"entry-{number:08}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
    made = time.monotonic()
    names = [entry.name for entry in os.scandir(directory)]
    listed = time.monotonic()
    if len(names) != count or set(names) != {f"entry-{number:08}" for number in range(count)}:
        sys.exit(f"{count} entries were made, {len(names)} are listed, {len(set(names))} of them different")
    for number in random.Random(1).sample(range(count), min(count, 1000)):
        os.stat(directory / f"entry-{number:08}")
    if (directory / f"entry-{count:08}").exists():
        sys.exit("an entry exists that was never made")
    looked = time.monotonic()
    for name in names:
        os.unlink(directory / name)
    if os.listdir(directory):
        sys.exit("entries are left after all were removed")
    directory.rmdir()
    end = time.monotonic()
    print(f"{count} entries: made in {made - clock:.1f} s, listed in {listed - made:.1f} s, removed in {end - looked:.1f} s")


if __name__ == "__main__":
    main()
