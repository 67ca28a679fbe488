"""The workloads of bench/mounts. Each takes a list of directories, the same one as it is seen through each mount of a filesystem (where
there is one mount, the list names it as often), and returns one number, as those of workloads.py do for one directory.
"""
import dataclasses
import io
import json
import pathlib
import shutil
import tarfile
import time

import workloads
from processes import REPOSITORY

TWO_MOUNTS = REPOSITORY / "bench/two_mounts.py"
PACKAGES, FILES_OF_PACKAGE = 40, 15


def alone(test):
    """A test of bench/compare through the first mount: the others do nothing."""
    return dataclasses.replace(test, run=lambda mounts, context: test.run(mounts[0], context),
                               prepare=lambda mounts, context: test.prepare(mounts[0], context),
                               finish=lambda mounts, context: test.finish(mounts[0], context))


def own_trees(operation, workers):
    """So many mounts work at once, each in a directory of its own; one mount has as many processes."""
    def tops(mounts):
        return [mount / f"{operation if operation == 'write4k' else 'names'}-of-{workers}" / str(number)
                for number, mount in enumerate(mounts[:workers])]
    return workloads.metadata_test(f"own_{workers}_{operation}", operation, tops)


# All mounts stat, open and read each file of one tree, for the second time.

def read_all(mounts, context):
    return workloads.metadata_ops("read_tree", [mount / "shared" for mount in mounts], context, context.tree_files * len(mounts))


def read_once(mounts, context):
    shutil.rmtree(mounts[0] / "shared", ignore_errors=True)
    with tarfile.open(fileobj=io.BytesIO(workloads.plain_tree(context.tree_files))) as tree:
        tree.extractall(mounts[0] / "shared")
    read_all(mounts, context)
    time.sleep(workloads.KERNEL_CACHE_SECONDS)


# bench/two_mounts.py

def two_mounts(what, one, other, count):
    def measure(mounts, context):
        return float(workloads.command(context, TWO_MOUNTS, what, mounts[one], mounts[other], count(context)))
    return measure


def empty_directory(name):
    def make(mounts, _context):
        shutil.rmtree(mounts[0] / name, ignore_errors=True)
        (mounts[0] / name).mkdir()
    return make


def turns(mounts, context):
    in_turns = two_mounts("turns", 0, 1, lambda context: max(1, context.files // 8))
    return in_turns([mount / "turns" for mount in mounts], context)


def own_file(mounts, context):
    write = two_mounts("own_file", 0, 1, lambda context: context.files)
    return write([mount / "shared-directory" for mount in mounts], context)


def appends(mounts, context):
    append = two_mounts("appends", 0, 1, lambda context: context.files)
    return append([mount / "log-directory" for mount in mounts], context)


def handover(name, what, one, other):
    make = workloads.rate if what == "rate" else workloads.duration
    return make(name, two_mounts(what, one, other, lambda context: workloads.size_of(context.file_size)),
                "MB/s" if what == "rate" else "ms", operation="MiB", operations=lambda _, context: workloads.size_of(context.file_size) >> 20)


# npm install of packages that are made here: nothing is fetched.

def write_archive(path, files):
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            info = tarfile.TarInfo(f"package/{name}")
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))


def packages(context):
    directory = context.scratch / "packages"
    if directory.exists():
        return directory
    directory.mkdir()
    for number in range(PACKAGES):
        files = {f"lib/part{part}.js": f"module.exports = {part};\n" * 40 for part in range(FILES_OF_PACKAGE - 1)}
        files["package.json"] = json.dumps({"name": f"bench-package{number}", "version": "1.0.0"})
        write_archive(directory / f"package{number}.tgz", files)
    return directory


def empty_project(directory, context):
    shutil.rmtree(directory / "npm", ignore_errors=True)
    (directory / "npm").mkdir()
    archives = packages(context)
    wanted = {f"bench-package{number}": f"file:{archives}/package{number}.tgz" for number in range(PACKAGES)}
    (directory / "npm/package.json").write_text(json.dumps({"name": "bench", "version": "1.0.0", "dependencies": wanted}))


def npm_install(directory, context):
    def install():
        workloads.command(context, "npm", "install", "--offline", "--no-audit", "--no-fund", "--no-update-notifier", "--ignore-scripts",
                          "--cache", context.scratch / "npm-cache", cwd=directory / "npm")
    taken = workloads.seconds_of(install)
    found = sum(path.is_file() for path in (directory / "npm/node_modules").glob("bench-package*/**/*"))
    if found != PACKAGES * FILES_OF_PACKAGE:
        raise workloads.Failed(f"npm install: {found} files instead of {PACKAGES * FILES_OF_PACKAGE}")
    return taken


NPM = workloads.duration("npm_install", npm_install, prepare=empty_project, operations=lambda *_: PACKAGES * FILES_OF_PACKAGE)
ALONE = ["create_1", "stat_1", "unlink_1", "write4k_1", "tree_unpack", "git_status_warm", "seq_write", "seq_read", "rand_read_1",
         "rand_write_1"]


def tests(mounts):
    by_name = {test.name: test for test in workloads.TESTS}
    return [
        *(alone(by_name[name]) for name in ALONE),
        *([alone(NPM)] if shutil.which("npm") else []),
        *(own_trees(operation, workers) for workers in sorted({2, mounts}) for operation in ("create", "stat", "unlink", "write4k")),
        workloads.rate("reread", read_all, prepare=read_once, operations=lambda _, context: context.tree_files * mounts),
        workloads.rate("turns", turns, prepare=empty_directory("turns"), operation="operation",
                       operations=lambda _, context: max(1, context.files // 8) * 8),
        workloads.rate("own_file", own_file, prepare=empty_directory("shared-directory"), operation="write",
                       operations=lambda _, context: context.files),
        workloads.rate("appends", appends, prepare=empty_directory("log-directory"), operation="append",
                       operations=lambda _, context: context.files),
        handover("handover_first", "first", 0, 1),
        handover("handback_first", "first", 1, 0),
        handover("handover", "rate", 0, 1),
        handover("handback", "rate", 1, 0),
    ]
