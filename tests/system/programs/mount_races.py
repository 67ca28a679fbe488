#!/usr/bin/env python3
"""Processes on two mounts of one directory race with each other; what every filesystem on one machine keeps has to hold across mounts too.
Usage: mount_races.py DIRECTORY-ON-MOUNT-A SAME-DIRECTORY-ON-MOUNT-B [--turns N]"""
import argparse
import fcntl
import multiprocessing
import os
import sys

PER_MOUNT = 2


def expect(condition, what):
    if not condition:
        sys.exit(f"mount_races: {what}")


def race(action, places, *arguments):
    """Runs action(place, number, *arguments) in PER_MOUNT processes for each mount."""
    processes = [multiprocessing.Process(target=action, args=(places[number % 2], number, *arguments)) for number in range(2 * PER_MOUNT)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    expect(not any(process.exitcode for process in processes), f"{action.__name__}: {[process.exitcode for process in processes]}")


def append(place, number, turns):
    fd = os.open(f"{place}/log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for turn in range(turns):
        record = f"{number} {turn} {'x' * (turn % 300)}\n".encode()
        expect(os.write(fd, record) == len(record), "a short append")
    os.close(fd)


def check_append(places, turns):
    race(append, places, turns)
    wanted = sorted(f"{number} {turn} {'x' * (turn % 300)}" for number in range(2 * PER_MOUNT) for turn in range(turns))
    for place in places:
        with open(f"{place}/log", encoding="ascii", errors="replace") as log:
            expect(sorted(log.read().split("\n")[:-1]) == wanted, f"appends were torn or lost, seen through {place}")


def count(place, _number, turns, lock):
    fd = os.open(f"{place}/counter", os.O_RDWR)
    for _ in range(turns):
        lock(fd, fcntl.LOCK_EX)
        value = int(os.pread(fd, 20, 0) or b"0")
        os.pwrite(fd, b"%020d" % (value + 1), 0)
        lock(fd, fcntl.LOCK_UN)
    os.close(fd)


def check_locks(places, turns, lock):
    with open(f"{places[0]}/counter", "wb"):
        pass
    race(count, places, turns, lock)
    for place in places:
        with open(f"{place}/counter", "rb") as counter:
            value = int(counter.read())
            expect(value == 2 * PER_MOUNT * turns, f"{lock.__name__}: counted {value} under lock, expected {2 * PER_MOUNT * turns}")


def create_exclusively(place, number, turns, wins):
    for turn in range(turns):
        try:
            os.close(os.open(f"{place}/exclusive-{turn}", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            wins[number] += 1
        except FileExistsError:
            pass


def check_exclusive(places, turns):
    wins = multiprocessing.Array("i", 2 * PER_MOUNT)
    race(create_exclusively, places, turns, wins)
    expect(sum(wins) == turns, f"{turns} names were created exclusively {sum(wins)} times")


def take(place, number, turns, taken):
    """Moves names from a common heap to its own; each name can be had once."""
    os.mkdir(f"{place}/own-{number}")
    for turn in range(turns):
        try:
            os.rename(f"{place}/heap/{turn}", f"{place}/own-{number}/{turn}")
            taken[number] += 1
        except FileNotFoundError:
            pass


def check_rename(places, turns):
    os.mkdir(f"{places[0]}/heap")
    for turn in range(turns):
        os.close(os.open(f"{places[turn % 2]}/heap/{turn}", os.O_CREAT | os.O_WRONLY))
    taken = multiprocessing.Array("i", 2 * PER_MOUNT)
    race(take, places, turns, taken)
    for place in places:
        held = [len(os.listdir(f"{place}/own-{number}")) for number in range(2 * PER_MOUNT)]
        expect(held == list(taken) and sum(held) == turns and not os.listdir(f"{place}/heap"),
               f"{turns} names were taken {sum(taken)} times, {held} are held, {len(os.listdir(place + '/heap'))} left")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mount_a")
    parser.add_argument("mount_b")
    parser.add_argument("--turns", type=int, default=100)
    args = parser.parse_args()
    name = f"races-{os.getpid()}"
    places = [f"{args.mount_a}/{name}", f"{args.mount_b}/{name}"]
    os.mkdir(places[0])
    check_append(places, args.turns)
    check_exclusive(places, args.turns)
    check_rename(places, args.turns)
    check_locks(places, args.turns, fcntl.flock)
    check_locks(places, args.turns, fcntl.lockf)


if __name__ == "__main__":
    main()
