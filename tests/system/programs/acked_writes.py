#!/usr/bin/env python3
"""Checks that every fsynced change is there after a crash.

acked_writes.py write DIRECTORY LOG   makes, overwrites, renames and removes files, fsyncs each change, and only then notes it in LOG; ends with
                                      the first error
acked_writes.py check DIRECTORY LOG   every noted state is there, or the one that was being made when the crash came
"""
import hashlib
import os
import random
import sys
import time

PAUSE = float(os.environ.get("WORK_PAUSE", 0))  # seconds between two changes
FILES = 20


def content(version, name):
    """Up to 300 KB that no other version of any file has."""
    seed = f"{name} {version}".encode()
    size = random.Random(seed).randrange(1, 300_000)
    return (hashlib.sha256(seed).digest() * (size // 32 + 1))[:size]


def fsync_directory(path):
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(fd)
    os.close(fd)


def put(directory, name, version):
    """Replaces the file as careful programs do: write aside, fsync, rename, fsync the directory."""
    aside = f"{directory}/acked-aside"
    fd = os.open(aside, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o644)
    data = content(version, name)
    if os.write(fd, data) != len(data):
        raise OSError("short write")
    os.fsync(fd)
    os.close(fd)
    os.rename(aside, f"{directory}/{name}")
    fsync_directory(directory)


def write(directory, log_path):
    """Log lines: "begin NAME VERSION" before, "done NAME VERSION" after; version 0 is a removed file."""
    version = 0
    with open(log_path, "w", encoding="ascii") as log:
        while True:
            version += 1
            name, removed = f"acked-{version % FILES}", version > FILES and version % 7 == 0
            print("begin", name, 0 if removed else version, file=log, flush=True)
            if removed:
                if os.path.exists(f"{directory}/{name}"):
                    os.unlink(f"{directory}/{name}")
                fsync_directory(directory)
            else:
                put(directory, name, version)
            print("done", name, 0 if removed else version, file=log, flush=True)
            time.sleep(PAUSE)


def check(directory, log_path):
    done, begun = {}, {}
    with open(log_path, encoding="ascii") as log:
        for line in log:
            what, name, version = line.split()
            (begun if what == "begin" else done)[name] = int(version)
    if not done:
        sys.exit("nothing was acknowledged before the crash")
    for name, version in done.items():
        allowed = {version, begun[name]}
        try:
            with open(f"{directory}/{name}", "rb") as file:
                data = file.read()
        except FileNotFoundError:
            data = None
        if data not in [content(each, name) if each else None for each in allowed]:
            found = "missing" if data is None else f"{len(data)} bytes"
            sys.exit(f"{name} is {found}; version {version} was fsynced, {begun[name]} was begun: "
                     f"{[len(content(each, name)) if each else 'missing' for each in allowed]} bytes")
    print(f"{len(done)} files as they were acknowledged")


if __name__ == "__main__":
    try:
        {"write": write, "check": check}[sys.argv[1]](*sys.argv[2:])
    except OSError as error:
        sys.exit(f"acked_writes: {error}")
