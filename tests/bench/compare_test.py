#!/usr/bin/env python3
"""bench/compare on two plain directories: every test yields a number, ratios follow from the medians, nothing stays behind."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent.parent
COMPARE = REPOSITORY / "bench/compare"
SMALL = ["--rounds", "1", "--settle", "0", "--file-size", "4M", "--seconds", "1", "--files", "20", "--tree-files", "30",
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
    check_built()
    return 0


def check_built():
    """After deploy/quickstart alone metadata_ops is not there: it is built first. (In a copy whose build is made of words.)"""
    with tempfile.TemporaryDirectory() as top, tempfile.TemporaryDirectory() as mount:
        copy = pathlib.Path(top)
        shutil.copytree(REPOSITORY / "bench", copy / "bench")
        (copy / "build/bin").mkdir(parents=True)
        (copy / "build/build.ninja").write_text(
            "rule make\n  command = printf '#!/bin/sh\\necho 7\\n' > bin/metadata_ops && chmod +x bin/metadata_ops\n"
            "build metadata_ops: make\n")
        done = subprocess.run([copy / "bench/compare", mount, "--json", "--rounds", "1", "--tests", "create_1"],
                              capture_output=True, text=True, timeout=60)
        check(done.returncode == 0 and "building metadata_ops" in done.stderr, f"without metadata_ops: {done.stderr}")
        check(json.loads(done.stdout)["rows"][0]["filesystems"][mount]["median"] == 7, done.stdout)


if __name__ == "__main__":
    sys.exit(main())
