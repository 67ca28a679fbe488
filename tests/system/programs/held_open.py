#!/usr/bin/env python3
"""Holds what a change of servers must not take from a program: a file without a name, and two locks. Usage: held_open.py DIRECTORY LOG

Until it is ended it adds to the file, which soon lies on OSTs, has that synced and reads everything again; LOG gets "NUMBER BEGIN END" for each
time, as steady_work.py's. It ends with words when something is wrong. DIRECTORY/flock has a lock of flock(2), DIRECTORY/posix one of fcntl(2).
"""
import fcntl
import itertools
import os
import sys
import time


def piece(number):
    return f"{number:010d} {'y' * 1000}\n".encode()


def main():
    directory, log_path = sys.argv[1:]
    os.makedirs(directory)
    flocked = os.open(f"{directory}/flock", os.O_CREAT | os.O_RDWR, 0o644)
    fcntl.flock(flocked, fcntl.LOCK_EX | fcntl.LOCK_NB)
    locked = os.open(f"{directory}/posix", os.O_CREAT | os.O_RDWR, 0o644)
    fcntl.lockf(locked, fcntl.LOCK_EX | fcntl.LOCK_NB)
    nameless = os.open(f"{directory}/nameless", os.O_CREAT | os.O_RDWR, 0o644)
    os.unlink(f"{directory}/nameless")
    content = b""
    with open(log_path, "a", encoding="ascii") as log:
        for number in itertools.count(1):
            begin = time.time()
            added = piece(number)
            os.pwrite(nameless, added, len(content))
            content += added
            os.fsync(nameless)
            os.posix_fadvise(nameless, 0, 0, os.POSIX_FADV_DONTNEED)
            if os.pread(nameless, len(content) + 1, 0) != content:
                sys.exit(f"the file without a name has not the {len(content)} bytes that were written")
            print(number, f"{begin:.6f}", f"{time.time():.6f}", file=log, flush=True)
            time.sleep(0.05)


if __name__ == "__main__":
    try:
        main()
    except OSError as error:
        sys.exit(f"held_open: {error}")
