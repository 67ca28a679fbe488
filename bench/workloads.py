"""The workloads of bench/compare and of bench/mounts: each one runs in a directory of a mounted filesystem and returns one number.

Everything happens below MOUNTPOINT/.nacre-bench, which prepare() makes and cleanup() removes. Tests of one group build on each other in
the order of TESTS (a file is read after it was written, names are unlinked after they were created); what a test that is chosen alone
needs is made first by its `prepare`, and what nobody needs any more goes in its `finish`, both outside of what is measured.
"""
import argparse
import contextlib
import dataclasses
import io
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import tarfile
import time
from typing import Callable

from processes import BIN, fail

DIRECTORY = ".nacre-bench"
KERNEL_CACHE_SECONDS = 1.5  # most FUSE mounts let the kernel answer for a second: what is measured is the filesystem behind it
QUIET_SECONDS, QUIET_SHARE = 0.3, 0.1  # settle(): so long must the processors be so idle
METADATA_OPS = BIN / "metadata_ops"


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
    prepare: Callable[[pathlib.Path, Context], None] = lambda directory, context: None
    finish: Callable[[pathlib.Path, Context], None] = lambda directory, context: None
    # How many operations a run has done, from its number, and what one is called: bench/mounts counts messages for each.
    operations: Callable[[float, Context], float] = lambda number, context: context.files
    operation: str = "file"


class Failed(Exception):
    pass


def size_of(text):
    """Bytes of a size such as 64M."""
    parts = re.fullmatch(r"([1-9][0-9]*)([KMG]?)", text)
    if not parts:
        raise ValueError(f"'{text}' is no size such as 512K, 64M or 1G")
    return int(parts[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[parts[2]]


def whole_mib(text):
    """A type of argparse: such a size, of whole MiB."""
    try:
        if size_of(text) % (1 << 20) == 0:
            return text
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"'{text}' is no size in whole MiB such as 64M or 1G")


def prepare(mountpoint):
    cleanup(mountpoint)
    (mountpoint / DIRECTORY).mkdir()


def settle(mountpoints, patience):
    """Waits until what earlier work left behind has been done: what the mounts hold back is sent, and the processors have nothing to do
    for a moment (an unlinked file's objects go later, a filesystem's database is tidied later). At most `patience` seconds."""
    for mountpoint in mountpoints:
        directory = os.open(mountpoint / DIRECTORY, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    end = time.monotonic() + patience
    while time.monotonic() < end and busy_share(QUIET_SECONDS) > QUIET_SHARE:
        pass


def busy_share(seconds):
    """The share of the processors' time that went into work during so many seconds from now."""
    def times():
        fields = [int(field) for field in pathlib.Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        return sum(fields), fields[3] + fields[4]  # all, idle and waiting for a disk
    total, idle = times()
    time.sleep(seconds)
    total_now, idle_now = times()
    return 1 - (idle_now - idle) / max(1, total_now - total)


def cleanup(mountpoint):
    shutil.rmtree(mountpoint / DIRECTORY, ignore_errors=True)


def run(test, where, context, measured=contextlib.nullcontext):
    """The number, or the reason for which there is none. `where` is what the test takes; `measured` is entered around its run alone."""
    try:
        test.prepare(where, context)
        try:
            with measured():
                return test.run(where, context)
        finally:
            test.finish(where, context)
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


def cold_file(directory, context):
    lay_out(directory, context)
    drop_caches()


def remove_file(directory, _context):
    (directory / "fio.data").unlink(missing_ok=True)


def sequential_write(directory, context):
    return fio(directory, context, "--rw=write", "--bs=1M", "--end_fsync=1")["write"]["bw_bytes"] / 1e6


def sequential_read(directory, context):
    return fio(directory, context, "--rw=read", "--bs=1M")["read"]["bw_bytes"] / 1e6


def random_io(direction, jobs):
    def measure(directory, context):
        result = fio(directory, context, f"--rw=rand{direction}", "--bs=4k", "--direct=1", f"--numjobs={jobs}",
                     "--time_based", f"--runtime={context.seconds}")
        return result[direction]["iops"]
    return measure


# Metadata: bench/metadata_ops.

def metadata(operation, processes):
    """The test of one operation in one directory for each process."""
    kind = "write4k" if operation == "write4k" else "names"

    def tops(directory):
        return [directory / f"{kind}-{processes}" / str(number) for number in range(processes)]

    return metadata_test(f"{operation}_{processes}", operation, tops)


def metadata_test(name, operation, tops):
    """`tops` says in which directories one process each works, of what the test is given."""
    def prepare(where, context):
        for top in tops(where):
            top.parent.mkdir(exist_ok=True)
        if operation in ("stat", "unlink") and not (tops(where)[0] / "0").exists():
            metadata_ops("create", tops(where), context)
        if operation == "stat":
            time.sleep(KERNEL_CACHE_SECONDS)

    def finish(where, _context):
        if operation == "write4k":  # nobody looks at these again, and the passthrough keeps a descriptor for each
            for top in tops(where):
                shutil.rmtree(top, ignore_errors=True)

    return rate(name, lambda where, context: metadata_ops(operation, tops(where), context), prepare=prepare, finish=finish)


def metadata_ops(operation, tops, context, files=None):
    return float(command(context, METADATA_OPS, operation, files or context.files, *tops))


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


def empty_tree(directory, context):
    source_tree(context)
    shutil.rmtree(directory / "tree", ignore_errors=True)
    (directory / "tree").mkdir()


def unpack(directory, context):
    return seconds_of(lambda: command(context, "tar", "-C", directory / "tree", "--no-same-owner", "-xf", source_tree(context)))


def unpacked(directory, context):
    if not (directory / "tree").exists():
        empty_tree(directory, context)
        unpack(directory, context)


def unpacked_cold(directory, context):
    unpacked(directory, context)
    drop_caches()


def unpacked_warm(directory, context):
    unpacked(directory, context)
    git_status(directory, context)


def git_status(directory, context):
    changed = command(context, "git", "-c", "safe.directory=*", "-C", directory / "tree", "status", "--porcelain")
    if changed:
        raise Failed(f"git status finds changes in a fresh tree: {changed.splitlines()[0]}")


def timed_git_status(directory, context):
    return seconds_of(lambda: git_status(directory, context))


def delete_tree(directory, context):
    return seconds_of(lambda: command(context, "rm", "-rf", directory / "tree"))


def rate(name, run_test, unit="/s", **more):
    return Test(name, unit, True, run_test, **more)


def duration(name, run_test, unit="s", **more):
    return Test(name, unit, False, run_test, **more)


def tree_test(name, run_test, prepare):
    return duration(name, run_test, prepare=prepare, operations=lambda _, context: context.tree_files)


def sequential(name, run_test, prepare):
    return rate(name, run_test, "MB/s", prepare=prepare, operation="MiB", operations=lambda _, context: size_of(context.file_size) >> 20)


def random_test(direction, jobs):
    return rate(f"rand_{direction}_{jobs}", random_io(direction, jobs), "IOPS", prepare=cold_file, operation="4 KiB",
                operations=lambda iops, context: iops * context.seconds)


METADATA_TESTS = [f"{operation}_{processes}" for processes in (1, 2) for operation in ("create", "stat", "unlink", "write4k")]

TESTS = [
    sequential("seq_write", sequential_write, remove_file),
    sequential("seq_read", sequential_read, cold_file),
    *(random_test(direction, jobs) for direction in ("read", "write") for jobs in (1, 4)),
    *(metadata(name[:-2], int(name[-1])) for name in METADATA_TESTS),
    tree_test("tree_unpack", unpack, empty_tree),
    tree_test("git_status_cold", timed_git_status, unpacked_cold),
    tree_test("git_status_warm", timed_git_status, unpacked_warm),
    tree_test("tree_delete", delete_tree, unpacked),
]


def chosen(text, known, what):
    """The names in a list with commas."""
    names = text.split(",")
    unknown = [name for name in names if name not in known]
    if unknown:
        fail(f"unknown {what} {', '.join(unknown)}; known are {', '.join(known)}")
    return names


def select(tests, text):
    """Those that the text names; all of them when there is none."""
    wanted = chosen(text, [test.name for test in tests], "test") if text else None
    return [test for test in tests if wanted is None or test.name in wanted]
