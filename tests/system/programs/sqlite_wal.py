#!/usr/bin/env python3
"""Several processes write to one SQLite database in WAL mode while another reads; then every row and the integrity are checked."""
import argparse
import multiprocessing
import pathlib
import sqlite3
import sys


def connect(path):
    database = sqlite3.connect(path, timeout=60, isolation_level=None)
    database.execute("pragma synchronous = full")
    return database


def write(path, writer, rows):
    database = connect(path)
    for row in range(rows):
        database.execute("begin immediate")
        database.execute("insert into entries (writer, row, data) values (?, ?, ?)", (writer, row, f"{writer}:{row}" * (row % 50 + 1)))
        database.execute("update totals set rows = rows + 1")
        database.execute("commit")
    database.close()


def read(path, stop):
    """Every transaction that a reader sees is whole: the rows and their total change together."""
    database = connect(path)
    while not stop.is_set():
        rows, total = database.execute("select (select count(*) from entries), (select rows from totals)").fetchone()
        if rows != total:
            sys.exit(f"a reader saw {rows} rows and a total of {total}")
    database.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--writers", type=int, default=4)
    parser.add_argument("--rows", type=int, default=200)
    args = parser.parse_args()
    args.directory.mkdir()
    path = args.directory / "database"

    database = connect(path)
    mode = database.execute("pragma journal_mode = wal").fetchone()[0]
    if mode != "wal":
        sys.exit(f"SQLite does not get WAL mode here but {mode}")
    database.executescript("create table entries (writer integer, row integer, data text, primary key (writer, row));"
                           "create table totals (rows integer); insert into totals values (0);")
    stop = multiprocessing.Event()
    reader = multiprocessing.Process(target=read, args=(path, stop))
    writers = [multiprocessing.Process(target=write, args=(path, number, args.rows)) for number in range(args.writers)]
    for process in [reader, *writers]:
        process.start()
    for process in writers:
        process.join()
    stop.set()
    reader.join()
    if any(process.exitcode for process in [reader, *writers]):
        sys.exit("a process failed: " + str([process.exitcode for process in [reader, *writers]]))

    integrity = database.execute("pragma integrity_check").fetchall()
    rows, total = database.execute("select (select count(*) from entries), (select rows from totals)").fetchone()
    database.close()
    if integrity != [("ok",)] or rows != total or rows != args.writers * args.rows:
        sys.exit(f"integrity {integrity}, {rows} rows, total {total}, expected {args.writers * args.rows}")


if __name__ == "__main__":
    main()
