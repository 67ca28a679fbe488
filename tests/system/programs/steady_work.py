#!/usr/bin/env python3
"""Small changes, one after the other, each on stable storage before the next: how long a change of servers keeps them waiting, and whether
what was acknowledged is there.

steady_work.py records DIR LOG            appends records to files, fsyncs each; LOG gets "NUMBER BEGIN END" for each, when it is done
steady_work.py names DIR LOG              makes small files, fsyncs, renames and removes them; LOG as above
steady_work.py watch DIR LOG              on another mount, for ever: each record that LOG has is in the file
steady_work.py since TIME SECONDS LOG...  waits until each of them has done something that it began after TIME; prints the milliseconds from TIME until then
steady_work.py longest TIME LOG...        prints the milliseconds that the longest of all that was done after TIME took
steady_work.py check-records DIR LOG      everything that LOG has is there, once, in order
steady_work.py check-names DIR LOG        so are the names, and no others

$WORK_PAUSE: seconds between two changes; 0 by default.
"""
import itertools
import os
import sys
import time
import zlib

PAUSE = float(os.environ.get("WORK_PAUSE", 0))
RECORDS = 150  # of a file: few enough that it stays in the MDT
KEPT = 100     # names: older ones are removed


def record(number):
    text = f"{number:010d}"
    return f"{text} {zlib.crc32(text.encode()):08x} {'x' * 43}\n".encode()


def file_of(directory, number):
    return f"{directory}/records-{(number - 1) // RECORDS:06d}"


def put(path, data):
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
    if os.write(fd, data) != len(data):
        raise OSError("short write")
    os.fsync(fd)
    os.close(fd)


def steadily(log_path, change):
    with open(log_path, "a", encoding="ascii") as log:
        for number in itertools.count(1):
            begin = time.time()
            change(number)
            print(number, f"{begin:.6f}", f"{time.time():.6f}", file=log, flush=True)
            time.sleep(PAUSE)


def records(directory, log_path):
    steadily(log_path, lambda number: put(file_of(directory, number), record(number)))


def name_of(directory, number):
    return f"{directory}/name-{number:08d}"


def fsync_directory(path):
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(fd)
    os.close(fd)


def names(directory, log_path):
    def change(number):
        put(f"{directory}/new", record(number))
        os.rename(f"{directory}/new", name_of(directory, number))
        if number > KEPT:
            os.unlink(name_of(directory, number - KEPT))
        fsync_directory(directory)

    steadily(log_path, change)


def lines_of(log_path):
    try:
        with open(log_path, encoding="ascii") as log:
            for line in log:
                parts = line.split()
                if line.endswith("\n") and len(parts) == 3:
                    yield int(parts[0]), float(parts[1]), float(parts[2])
    except FileNotFoundError:
        return


def last_of(log_path):
    """The newest number, without reading what is before it."""
    try:
        with open(log_path, "rb") as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - 200))
            lines = log.read().decode("ascii").split("\n")[:-1]  # the last one may not be whole
    except FileNotFoundError:
        return 0
    return int(lines[-1].split()[0]) if lines else 0


def check_file(directory, number, wanted):
    """The file of record `number` has it and those before it; what is behind it may be torn."""
    with open(file_of(directory, number), "rb") as file:
        data = file.read()
    first = (number - 1) // RECORDS * RECORDS + 1
    for each in range(first, wanted + 1):
        at = (each - first) * len(record(each))
        found = data[at:at + len(record(each))]
        if found != record(each):
            sys.exit(f"record {each} was acknowledged, but {file_of(directory, each)} has {len(data)} bytes, and there {found!r}")


def watch(directory, log_path):
    while True:
        last = last_of(log_path)
        if last:
            check_file(directory, last, last)
        time.sleep(0.05)


def first_begun_since(start, deadline, log_path):
    """When it was done."""
    line = ""
    with open(log_path, encoding="ascii") as log:
        while time.time() < deadline:
            line += log.readline()
            if not line.endswith("\n"):
                time.sleep(0.02)
                continue
            _, begin, end = line.split()
            if float(begin) >= start:
                return float(end)
            line = ""
    sys.exit(f"{os.path.basename(log_path)}: nothing was done for {deadline - start:.0f} s")


def since(start, seconds, *log_paths):
    deadline = time.time() + float(seconds)
    while not all(map(os.path.exists, log_paths)) and time.time() < deadline:
        time.sleep(0.05)
    ends = [first_begun_since(float(start), deadline, path) for path in log_paths]
    print(f"{(max(ends) - float(start)) * 1000:.0f}")


def longest(start, *log_paths):
    took = [end - begin for path in log_paths for _, begin, end in lines_of(path) if end >= float(start)]
    print(f"{max(took, default=0) * 1000:.0f}")


def check_records(directory, log_path):
    last = last_of(log_path)
    if last == 0:
        sys.exit("nothing was acknowledged")
    for first in range(1, last + 1, RECORDS):
        check_file(directory, first, min(first + RECORDS - 1, last))
    print(f"{last} records")


def check_names(directory, log_path):
    last = last_of(log_path)
    if last == 0:
        sys.exit("nothing was acknowledged")
    found = sorted(os.listdir(directory))
    if f"name-{last + 1:08d}" in found:
        last += 1  # was being made
    begins = max(last - KEPT, 0) + 1
    wanted = [f"name-{number:08d}" for number in range(begins, last + 1)]
    # Of what was being done, all or a part.
    allowed = {"new", f"name-{begins - 1:08d}"}
    if [name for name in found if name not in allowed] != wanted:
        strange = sorted(set(found) - set(wanted) - allowed)
        missing = sorted(set(wanted) - set(found))
        sys.exit(f"after {last} names: missing {missing[:5]}, too many {strange[:5]}")
    for number in range(begins, last + 1):
        with open(name_of(directory, number), "rb") as file:
            if file.read() != record(number):
                sys.exit(f"{name_of(directory, number)} is not what was written")
    print(f"{last} names")


if __name__ == "__main__":
    try:
        {"records": records, "names": names, "watch": watch, "since": since, "longest": longest, "check-records": check_records,
         "check-names": check_names}[sys.argv[1]](*sys.argv[2:])
    except OSError as error:
        sys.exit(f"steady_work: {error}")
