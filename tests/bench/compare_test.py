#!/usr/bin/env python3
"""bench/compare on two plain directories: every test yields a number, ratios follow from the medians, nothing stays behind."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent.parent
COMPARE = REPOSITORY / "bench/compare"
SMALL = ["--rounds", "1", "--file-size", "4M", "--seconds", "1", "--files", "20", "--tree-files", "30",
         "--tests", "seq_write,create_2,stat_2,tree_unpack,git_status_warm,tree_delete"]


def check(condition, what):
    if not condition:
        sys.exit(f"compare_test: {what}")


def main():
    if os.geteuid() != 0:
        print("compare_test: skipped, bench/compare needs root")
        return 77
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        done = subprocess.run([COMPARE, f"one={first}", f"two={second}", "--json", *SMALL], capture_output=True, text=True, timeout=120)
        check(done.returncode == 0, f"exit {done.returncode}: {done.stderr}")
        summary = json.loads(done.stdout)
        check(len(summary["rows"]) == 6, f"rows: {[row['test'] for row in summary['rows']]}")
        for row in summary["rows"]:
            one, two = row["filesystems"]["one"], row["filesystems"]["two"]
            faster = two["median"] / one["median"] if row["more_is_better"] else one["median"] / two["median"]
            check(one["ratio"] == 1 and abs(two["ratio"] - faster) < 1e-9, f"{row['test']}: ratios {one} {two}")
        check(not os.listdir(first) and not os.listdir(second), "it left files behind")
    refused = subprocess.run([COMPARE, "/nonexistent/place"], capture_output=True, text=True, timeout=30)
    check(refused.returncode != 0 and "/nonexistent/place" in refused.stderr, f"a wrong path: {refused.stderr}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
