#!/usr/bin/env python3
"""Moves a tree of three levels back and forth by rename while workers, each with a directory handle of its own in it, keep creating, reading,
renaming and removing. No worker may see an error, and in the end every file that a worker left is there with its content."""
import argparse
import multiprocessing
import os
import pathlib
import sys
import time


def work(directory, number, stop, counts, ready):
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    ready.wait()  # from now on the directory has no lasting path
    done = 0
    while not stop.is_set():
        name, data = f"w{number}-{done}", f"{number}:{done}".encode() * 100
        file = os.open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o644, dir_fd=handle)
        os.write(file, data)
        if os.pread(file, len(data) + 1, 0) != data:
            sys.exit(f"{name} reads back wrong")
        os.close(file)
        os.rename(name, name + "-renamed", src_dir_fd=handle, dst_dir_fd=handle)
        if os.stat(name + "-renamed", dir_fd=handle).st_size != len(data):
            sys.exit(f"{name} has the wrong size")
        if done % 2:
            os.unlink(name + "-renamed", dir_fd=handle)
        done += 1
    counts[number] = done


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=5)
    args = parser.parse_args()
    places = [args.directory / "one", args.directory / "two" / "inner"]
    leaves = ["a/b/c", "a/b/d", "a/e/f", "g/h/i"]
    for place in (args.directory, args.directory / "two"):
        place.mkdir()
    for leaf in leaves:
        (places[0] / leaf).mkdir(parents=True)

    stop, counts, ready = multiprocessing.Event(), multiprocessing.Array("q", len(leaves)), multiprocessing.Barrier(len(leaves) + 1)
    workers = [multiprocessing.Process(target=work, args=(places[0] / leaf, number, stop, counts, ready))
               for number, leaf in enumerate(leaves)]
    for worker in workers:
        worker.start()
    ready.wait()
    moves, end = 0, time.monotonic() + args.seconds
    while time.monotonic() < end:
        os.rename(places[moves % 2], places[(moves + 1) % 2])
        moves += 1
    stop.set()
    for worker in workers:
        worker.join()
    if any(worker.exitcode for worker in workers):
        sys.exit("a worker failed")

    top = places[moves % 2]
    for number, leaf in enumerate(leaves):
        expected = {f"w{number}-{done}-renamed" for done in range(0, counts[number], 2)}
        if set(os.listdir(top / leaf)) != expected:
            sys.exit(f"{leaf}: {len(os.listdir(top / leaf))} files, expected {len(expected)}")
        for name in expected:
            done = int(name.split("-")[1])
            if (top / leaf / name).read_bytes() != f"{number}:{done}".encode() * 100:
                sys.exit(f"{leaf}/{name} has the wrong content")
    print(f"{moves} moves, {sum(counts)} files")


if __name__ == "__main__":
    main()
