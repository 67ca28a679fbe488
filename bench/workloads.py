"""The workloads of bench/compare: each one runs on a mounted filesystem and returns one number.

Everything happens below MOUNTPOINT/.nacre-bench, which prepare() makes and cleanup() removes. Tests of one group build on each other in
the order of TESTS (a file is read after it was written, names are unlinked after they were created); a test that is chosen alone
makes what it needs first, outside of the measured time.
"""
import dataclasses
import io
import json
import os
import pathlib
import random
import shutil
import subprocess
import tarfile
import time
from typing import Callable

DIRECTORY = ".nacre-bench"
KERNEL_CACHE_SECONDS = 1.5  # most FUSE mounts let the kernel answer for a second: what is measured is the filesystem behind it
METADATA_OPS = pathlib.Path(__file__).resolve().parent.parent / "build/bin/metadata_ops"


@dataclasses.dataclass(frozen=True)
class Context:
    file_size: str
    seconds: int
    files: int
    tree_files: int
    timeout: int
    scratch: pathlib.Path  # fast and not on any of the disks that are measured


@dataclasses.dataclass(frozen=True)
class Test:
    name: str
    unit: str
    more_is_better: bool
    run: Callable[[pathlib.Path, Context], float]


class Failed(Exception):
    pass


def prepare(mountpoint):
    cleanup(mountpoint)
    (mountpoint / DIRECTORY).mkdir()


def cleanup(mountpoint):
    shutil.rmtree(mountpoint / DIRECTORY, ignore_errors=True)


def run(test, mountpoint, context):
    """The number, or the reason for which there is none."""
    try:
        return test.run(mountpoint / DIRECTORY, context)
    except (Failed, OSError, subprocess.SubprocessError) as error:
        return f"failed: {str(error).strip().splitlines()[-1]}"


def command(context, *words, **options):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=context.timeout, **options)
    if done.returncode != 0:
        raise Failed((done.stderr or done.stdout or f"{words[0]}: exit {done.returncode}")[-400:])
    return done.stdout


def drop_caches():
    os.sync()
    pathlib.Path("/proc/sys/vm/drop_caches").write_text("3\n")


def seconds_of(action):
    start = time.monotonic()
    action()
    return time.monotonic() - start


# Sequential and random I/O: fio.

def fio(directory, context, *options):
    output = command(context, "fio", "--name=compare", f"--filename={directory}/fio.data", f"--size={context.file_size}",
                     "--ioengine=psync", "--output-format=json", "--randrepeat=1", "--thread", "--group_reporting", *options)
    return json.loads(output[output.index("{"):])["jobs"][0]


def lay_out(directory, context):
    if not (directory / "fio.data").exists():
        fio(directory, context, "--rw=write", "--bs=1M", "--end_fsync=1")


def sequential_write(directory, context):
    (directory / "fio.data").unlink(missing_ok=True)
    return fio(directory, context, "--rw=write", "--bs=1M", "--end_fsync=1")["write"]["bw_bytes"] / 1e6


def sequential_read(directory, context):
    lay_out(directory, context)
    drop_caches()
    return fio(directory, context, "--rw=read", "--bs=1M")["read"]["bw_bytes"] / 1e6


def random_io(direction, jobs):
    def measure(directory, context):
        lay_out(directory, context)
        drop_caches()
        result = fio(directory, context, f"--rw=rand{direction}", "--bs=4k", "--direct=1", f"--numjobs={jobs}",
                     "--time_based", f"--runtime={context.seconds}")
        return result[direction]["iops"]
    return measure


# Metadata: bench/metadata_ops.

def metadata(operation, processes):
    def measure(directory, context):
        top = directory / f"{'write4k' if operation == 'write4k' else 'names'}-{processes}"
        if operation in ("stat", "unlink") and not (top / "0" / "0").exists():
            metadata_ops("create", top, context, processes)
        if operation == "stat":
            time.sleep(KERNEL_CACHE_SECONDS)
        try:
            return metadata_ops(operation, top, context, processes)
        finally:
            if operation == "write4k":  # nobody looks at these again, and the passthrough keeps a descriptor for each
                shutil.rmtree(top, ignore_errors=True)
    return measure


def metadata_ops(operation, top, context, processes):
    top.mkdir(exist_ok=True)
    return float(command(context, METADATA_OPS, operation, top, context.files, processes))


# A source tree: tar, git, rm.

def source_tree(context):
    """A tar archive of a git work tree with `tree_files` files, the same on every run. Made once."""
    archive = context.scratch / "tree.tar"
    if archive.exists():
        return archive
    tree = context.scratch / "tree"
    with tarfile.open(fileobj=io.BytesIO(plain_tree(context.tree_files))) as plain:
        plain.extractall(tree)
    identity = ["-c", "user.name=bench", "-c", "user.email=bench@localhost", "-c", "gc.auto=0"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "tree"], ["repack", "-adq"]):
        command(context, "git", "-C", tree, *identity, *words)
    command(context, "tar", "-C", tree, "-cf", archive, ".")
    shutil.rmtree(tree)
    return archive


def plain_tree(files):
    """Sizes as in source code: half of the files below 4 KiB, a few above 100 KiB; 12 files in a directory, three levels."""
    source, data = random.Random(1), io.BytesIO()
    words = ["static", "return", "struct", "const", "offset", "length", "if", "for", "{", "}", "(", ")", ";", "\n"]
    line = " ".join(source.choice(words) for _ in range(60000)).encode()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for number in range(files):
            size = min(int(source.lognormvariate(8.3, 1.2)), 200_000)
            start = source.randrange(len(line) - size)
            info = tarfile.TarInfo(f"part{number // 600}/module{number // 120}/unit{number // 12}/file{number}.c")
            info.size = size
            archive.addfile(info, io.BytesIO(line[start:start + size]))
    return data.getvalue()


def unpack(directory, context):
    archive, tree = source_tree(context), directory / "tree"
    shutil.rmtree(tree, ignore_errors=True)
    tree.mkdir()
    return seconds_of(lambda: command(context, "tar", "-C", tree, "--no-same-owner", "-xf", archive))


def unpacked(directory, context):
    if not (directory / "tree").exists():
        unpack(directory, context)
    return directory / "tree"


def git_status(tree, context):
    changed = command(context, "git", "-c", "safe.directory=*", "-C", tree, "status", "--porcelain")
    if changed:
        raise Failed(f"git status finds changes in a fresh tree: {changed.splitlines()[0]}")


def git_status_cold(directory, context):
    tree = unpacked(directory, context)
    drop_caches()
    return seconds_of(lambda: git_status(tree, context))


def git_status_warm(directory, context):
    tree = unpacked(directory, context)
    git_status(tree, context)
    return seconds_of(lambda: git_status(tree, context))


def delete_tree(directory, context):
    tree = unpacked(directory, context)
    return seconds_of(lambda: command(context, "rm", "-rf", tree))


def rate(name, run_test, unit="/s"):
    return Test(name, unit, True, run_test)


def duration(name, run_test):
    return Test(name, "s", False, run_test)


METADATA_TESTS = [f"{operation}_{processes}" for processes in (1, 2) for operation in ("create", "stat", "unlink", "write4k")]

TESTS = [
    rate("seq_write", sequential_write, "MB/s"),
    rate("seq_read", sequential_read, "MB/s"),
    rate("rand_read_1", random_io("read", 1), "IOPS"),
    rate("rand_read_4", random_io("read", 4), "IOPS"),
    rate("rand_write_1", random_io("write", 1), "IOPS"),
    rate("rand_write_4", random_io("write", 4), "IOPS"),
    *(rate(name, metadata(name[:-2], int(name[-1]))) for name in METADATA_TESTS),
    duration("tree_unpack", unpack),
    duration("git_status_cold", git_status_cold),
    duration("git_status_warm", git_status_warm),
    duration("tree_delete", delete_tree),
]


def names():
    return [test.name for test in TESTS]


def select(wanted):
    return [test for test in TESTS if test.name in wanted]
