#!/usr/bin/env python3
"""Random operations, each through one of two or more mounts of the same directory, against a model in memory.

Every outcome has to be the model's, errors included, and after each operation the OTHER mounts are asked for what was touched: attributes,
content, listings. Now and then the whole tree is compared through all, and descriptors that were opened earlier, also of files that lost
their names since, go on being used. A failure prints the seed, the last operations and the difference; the same seed repeats it.

--quiet-every N: after so many operations nobody changes anything for some seconds while all look at everything. Clients then hold leases
and their kernels keep what they have seen, which the operations behind it must not leave them with.

--alone-every N: after so many operations nobody looks for some seconds; then one mount alone does much, under WRITE of its directories,
before the others look at everything.

--trouble DOWN UP, any number of times: commands that end, freeze or cut off the last mount, and bring it back. By turns, after every
--trouble-every N operations: the last mount has changed much, all of it on stable storage, and holds leases of it when DOWN is run. The
others go on, in the same directories; none of them waits for longer than PATIENCE. Behind UP the mount has to know all of that.

Usage: two_mounts.py DIRECTORY-ON-MOUNT-A SAME-DIRECTORY-ON-MOUNT-B… [--seed N] [--operations N] [--quiet-every N] [--alone-every N]
                     [--trouble DOWN UP]… [--trouble-every N] [--seconds N]
--seconds N: operations until then, instead of --operations.
"""
import argparse
import collections
import ctypes
import errno
import os
import random
import shutil
import stat
import subprocess
import sys
import time

from tree_model import Model

NAMES = ["a", "b", "c", "d", "name-of-more-bytes"]
SIZES = [1, 100, 4095, 4096, 5000, 70000, 300000]
OFFSETS = [0, 0, 1, 4096, 10000, 65536, 131071, 1 << 20]
PUNCH_HOLE_KEEP_SIZE = 3
QUIET = 7  # seconds: after a conflict the MDS gives no lease of a directory for five
ALONE = 150  # operations
IN_TROUBLE = 40  # operations of the others
PATIENCE = 40  # seconds: a lease, the fences behind it, and a busy machine
LIBC = ctypes.CDLL(None, use_errno=True)
Open = collections.namedtuple("Open", "fd mount node")


class Different(Exception):
    pass


def letter(mount):
    return chr(ord("A") + mount)


def expect(actual, wanted, what):
    if actual != wanted:
        raise Different(f"{what}: got {shorten(actual)}, expected {shorten(wanted)}")


def expect_data(actual, wanted, what):
    if actual == wanted:
        return
    place = next((i for i, (a, b) in enumerate(zip(actual, wanted)) if a != b), min(len(actual), len(wanted)))
    raise Different(f"{what}: {len(actual)} bytes, expected {len(wanted)}; the first difference is at byte {place}: "
                    f"{bytes(actual[place:place + 16])} for {bytes(wanted[place:place + 16])}")


def shorten(value):
    text = repr(value)
    return text if len(text) < 300 else text[:300] + "…"


def punch(fd, offset, length):
    if LIBC.fallocate(fd, PUNCH_HOLE_KEEP_SIZE, ctypes.c_long(offset), ctypes.c_long(length)) != 0:
        raise OSError(ctypes.get_errno(), "fallocate")


def rename(old, new):
    """Once more after a look, if the kernel has met a directory in the middle of the rename that another mount has moved (docs/decisions/0010)."""
    try:
        os.rename(old, new)
    except OSError as error:
        if error.errno != errno.ESTALE:
            raise
        for path in (old, new):
            os.path.lexists(path)
        os.rename(old, new)


class Run:
    def __init__(self, mounts, seed):
        self.mounts, self.random, self.model = mounts, random.Random(seed), Model()
        self.open_files, self.history, self.counter, self.troubles = [], collections.deque(maxlen=15), 0, 0
        self.active = list(range(len(mounts)))  # those that are asked
        self.weights = {self.op_create: 12, self.op_mkdir: 6, self.op_symlink: 3, self.op_link: 4, self.op_unlink: 7, self.op_rmdir: 3,
                        self.op_rename: 10, self.op_chmod: 4, self.op_write: 16, self.op_append: 6, self.op_truncate: 6, self.op_punch: 3,
                        self.op_setxattr: 4, self.op_open: 5, self.op_use: 8, self.op_close: 4}

    # Choosing

    def any_path(self):
        """A path of up to three names; mostly below a directory that exists."""
        directories = [path.rstrip("/") for path, node in self.model.paths() if node.kind == "dir" and path.count("/") <= 2]
        base = self.random.choice(directories) if self.random.random() < 0.9 else "/" + self.random.choice(NAMES)
        return f"{base}/{self.random.choice(NAMES)}"

    def any_file(self):
        files = [path for path, node in self.model.paths() if node.kind == "file"]
        return self.random.choice(files) if files and self.random.random() < 0.9 else self.any_path()

    def data(self, size):
        """Bytes that no other write wrote."""
        self.counter += 1
        piece = b"<%d>" % self.counter
        return (piece * (size // len(piece) + 1))[:size]

    # Doing one thing on a mount and in the model

    def both(self, mount, what, real, ideal):
        """Runs `real` and `ideal`; their results or errors have to be the same. Returns the model's result, None after an error."""
        self.history.append(f"mount {letter(mount)}: {what}")
        try:
            wanted, wanted_error = ideal(), 0
        except OSError as error:
            wanted, wanted_error = None, error.errno
        try:
            real()
            got_error = 0
        except OSError as error:
            got_error = error.errno
        expect(errno.errorcode.get(got_error, "success"), errno.errorcode.get(wanted_error, "success"), what)
        return wanted

    def full(self, mount, path):
        return self.mounts[mount] + path

    def with_file(self, mount, path, flags, action):
        fd = os.open(self.full(mount, path), flags | os.O_NOFOLLOW)
        try:
            return action(fd)
        finally:
            os.close(fd)

    def op_create(self, mount):
        path, mode = self.any_path(), self.random.choice([0o600, 0o644, 0o755])
        self.both(mount, f"create {path} {mode:o}",
                  lambda: os.close(os.open(self.full(mount, path), os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode)),
                  lambda: self.model.create(path, mode))
        return [path]

    def op_mkdir(self, mount):
        path = self.any_path()
        self.both(mount, f"mkdir {path}", lambda: os.mkdir(self.full(mount, path), 0o755), lambda: self.model.mkdir(path, 0o755))
        return [path]

    def op_symlink(self, mount):
        path, target = self.any_path(), f"target-{self.random.randrange(1000)}"
        self.both(mount, f"symlink {path}", lambda: os.symlink(target, self.full(mount, path)), lambda: self.model.symlink(path, target))
        return [path]

    def op_link(self, mount):
        old, new = self.any_file(), self.any_path()
        self.both(mount, f"link {old} {new}",
                  lambda: os.link(self.full(mount, old), self.full(mount, new), follow_symlinks=False), lambda: self.model.link(old, new))
        return [old, new]

    def op_unlink(self, mount):
        path = self.any_file() if self.random.random() < 0.7 else self.any_path()
        self.both(mount, f"unlink {path}", lambda: os.unlink(self.full(mount, path)), lambda: self.model.unlink(path))
        return [path]

    def op_rmdir(self, mount):
        path = self.any_path()
        self.both(mount, f"rmdir {path}", lambda: os.rmdir(self.full(mount, path)), lambda: self.model.rmdir(path))
        return [path]

    def op_rename(self, mount):
        old, new = self.any_path(), self.any_path()
        self.both(mount, f"rename {old} {new}",
                  lambda: rename(self.full(mount, old), self.full(mount, new)), lambda: self.model.rename(old, new))
        return [old, new]

    def op_chmod(self, mount):
        path, mode = self.any_file(), self.random.choice([0o600, 0o640, 0o755])

        def ideal():
            self.model.file(path).mode = mode
        self.both(mount, f"chmod {path} {mode:o}",
                  lambda: self.with_file(mount, path, os.O_RDWR, lambda fd: os.fchmod(fd, mode)), ideal)
        return [path]

    def op_write(self, mount):
        path, offset, data = self.any_file(), self.random.choice(OFFSETS), self.data(self.random.choice(SIZES))
        self.both(mount, f"write {path} {offset}+{len(data)}",
                  lambda: self.with_file(mount, path, os.O_WRONLY, lambda fd: expect(os.pwrite(fd, data, offset), len(data), "pwrite")),
                  lambda: self.model.write(self.model.file(path), offset, data))
        return [path]

    def op_append(self, mount):
        path, data = self.any_file(), self.data(self.random.choice(SIZES))

        def ideal():
            node = self.model.file(path)
            self.model.write(node, len(node.data), data)
        self.both(mount, f"append {path} {len(data)}",
                  lambda: self.with_file(mount, path, os.O_WRONLY | os.O_APPEND, lambda fd: expect(os.write(fd, data), len(data), "write")),
                  ideal)
        return [path]

    def op_truncate(self, mount):
        path, size = self.any_file(), self.random.choice([0] + SIZES)
        self.both(mount, f"truncate {path} {size}",
                  lambda: self.with_file(mount, path, os.O_RDWR, lambda fd: os.ftruncate(fd, size)),
                  lambda: self.model.truncate(self.model.file(path), size))
        return [path]

    def op_punch(self, mount):
        path, offset, length = self.any_file(), self.random.choice(OFFSETS), self.random.choice(SIZES)
        self.both(mount, f"punch {path} {offset}+{length}",
                  lambda: self.with_file(mount, path, os.O_RDWR, lambda fd: punch(fd, offset, length)),
                  lambda: self.model.punch(self.model.file(path), offset, length))
        return [path]

    def op_setxattr(self, mount):
        path, name, value = self.any_file(), self.random.choice(["user.one", "user.two"]), self.data(self.random.choice([0, 3, 200]))

        def ideal():
            self.model.file(path).xattrs[name] = value
        self.both(mount, f"setxattr {path} {name}",
                  lambda: self.with_file(mount, path, os.O_RDWR, lambda fd: os.setxattr(fd, name, value)), ideal)
        return [path]

    # Descriptors that stay open

    def op_open(self, mount):
        path, opened = self.any_file(), []
        node = self.both(mount, f"open {path}", lambda: opened.append(os.open(self.full(mount, path), os.O_RDWR | os.O_NOFOLLOW)),
                         lambda: self.model.file(path))
        if node:
            self.open_files.append(Open(opened[0], mount, node))
        return []

    def op_use(self, _mount):
        if not self.open_files:
            return []
        file, offset, data = self.random.choice(self.open_files), self.random.choice(OFFSETS), self.data(self.random.choice(SIZES))
        self.both(file.mount, f"write to open descriptor {file.fd} {offset}+{len(data)}",
                  lambda: expect(os.pwrite(file.fd, data, offset), len(data), "pwrite"),
                  lambda: self.model.write(file.node, offset, data))
        for other in self.open_files:
            if other.node is file.node:
                self.check_attributes(os.fstat(other.fd), file.node, f"descriptor {other.fd} on mount {letter(other.mount)}")
                self.check_content(other.fd, file.node, f"descriptor {other.fd} on mount {letter(other.mount)}")
        return []

    def op_close(self, _mount):
        if self.open_files:
            file = self.open_files.pop(self.random.randrange(len(self.open_files)))
            self.history.append(f"mount {letter(file.mount)}: close descriptor {file.fd}")
            os.close(file.fd)
        return []

    # Comparing

    def check_attributes(self, attributes, node, what):
        expect(attributes.st_mode, node.st_mode(), f"{what}: mode")
        expect(attributes.st_nlink, node.nlink, f"{what}: links")
        if node.kind == "file":
            expect(attributes.st_size, len(node.data), f"{what}: size")

    def check_content(self, fd, node, what):
        size = len(node.data)
        offset = self.random.randrange(size) if size and self.random.random() < 0.5 else 0
        expect_data(os.pread(fd, size - offset + 10, offset), node.data[offset:], f"{what}: content from {offset}")

    def check_path(self, mount, path):
        what = f"{path} seen through mount {letter(mount)}"
        try:
            node = self.model.find(path)
        except OSError as error:
            try:
                os.lstat(self.full(mount, path))
            except OSError as real:
                return expect(errno.errorcode[real.errno], errno.errorcode[error.errno], what)
            raise Different(f"{what}: it exists, expected {errno.errorcode[error.errno]}") from None
        attributes = os.lstat(self.full(mount, path))
        self.check_attributes(attributes, node, what)
        if node.kind == "dir":
            expect(sorted(os.listdir(self.full(mount, path))), sorted(node.children), f"{what}: listing")
        elif node.kind == "link":
            expect(os.readlink(self.full(mount, path)), node.target, f"{what}: target")
        else:
            self.check_file(mount, path, node, what)
        return attributes

    def check_file(self, mount, path, node, what):
        fd = os.open(self.full(mount, path), os.O_RDONLY)
        try:
            self.check_content(fd, node, what)
            expect({name: os.getxattr(fd, name) for name in os.listxattr(fd) if name.startswith("user.")}, node.xattrs, f"{what}: xattrs")
        finally:
            os.close(fd)

    def check_same(self, path):
        """All mounts, those that did not act first, show the model's answer and the same times and number."""
        seen = [(mount, self.check_path(mount, path)) for mount in sorted(self.active, key=lambda mount: mount == self.acting)]
        last, wanted = seen.pop()
        if not wanted:
            return
        for mount, attributes in seen:
            for field in ("st_ino", "st_uid", "st_gid", "st_mtime_ns", "st_ctime_ns"):
                expect(getattr(attributes, field), getattr(wanted, field), f"{path}: {field} through mount {letter(mount)}, by {letter(last)}'s")

    def check_tree(self):
        for path, _ in list(self.model.paths()):
            self.check_same(path)

    def look_for_a_while(self):
        until = time.monotonic() + QUIET
        while time.monotonic() < until:
            self.check_tree()
            time.sleep(0.05)

    def work_alone(self, acting):
        time.sleep(QUIET)
        self.acting = acting
        others = [file for file in self.open_files if file.mount != self.acting]
        self.open_files = [file for file in self.open_files if file.mount == self.acting]
        for _ in range(ALONE):
            for path in self.any_operation()(self.acting):
                self.check_path(self.acting, path)
        self.open_files += others

    def trouble(self, down, up):
        """The last mount is alone and in trouble: then the others are, without it."""
        troubled = self.active[-1]
        self.troubles += 1
        self.work_alone(troubled)
        while any(file.mount == troubled for file in self.open_files):
            self.op_close(0)
        root = os.open(self.mounts[troubled], os.O_RDONLY)
        expect(LIBC.syncfs(root), 0, "syncfs")
        os.close(root)
        self.history.append(f"mount {letter(troubled)}: {down}")
        subprocess.run(down, shell=True, check=True)
        self.active.remove(troubled)
        try:
            for _ in range(IN_TROUBLE):
                begin = time.monotonic()
                self.operate()
                if time.monotonic() - begin > PATIENCE:
                    raise Different(f"the last operation took {time.monotonic() - begin:.0f} s")
            self.check_tree()
            self.history.append(f"mount {letter(troubled)}: {up}")
        finally:  # also when the others went wrong: whoever looks at what is left would hang in a frozen mount
            subprocess.run(up, shell=True, check=True)
        self.active.append(troubled)
        self.check_tree()

    def any_operation(self):
        return self.random.choices(list(self.weights), list(self.weights.values()))[0]

    def operate(self):
        self.acting = self.random.choice(self.active)
        for path in self.any_operation()(self.acting):
            self.check_same(path)
            parent = path.rpartition("/")[0]
            if parent and stat.S_ISDIR(self.mode_or_zero(parent)):
                self.check_same(parent)

    def run(self, goes_on, quiet_every, alone_every, troubles, trouble_every):
        number = 0
        while goes_on(number):
            number += 1
            self.operate()
            if number % 200 == 0:
                self.check_tree()
            if quiet_every and number % quiet_every == 0:
                self.look_for_a_while()
            if alone_every and number % alone_every == 0:
                self.work_alone(self.random.choice(self.active))
                self.check_tree()
            if troubles and number % trouble_every == 0:
                self.trouble(*troubles[number // trouble_every % len(troubles)])
        self.check_tree()
        while self.open_files:
            self.op_close(0)
        print(f"{number} operations, and {self.troubles} times in trouble")

    def mode_or_zero(self, path):
        try:
            return self.model.find(path).st_mode()
        except OSError:
            return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mounts", nargs="+")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--operations", type=int, default=2000)
    parser.add_argument("--seconds", type=int)
    parser.add_argument("--quiet-every", type=int, default=0)
    parser.add_argument("--alone-every", type=int, default=0)
    parser.add_argument("--trouble", nargs=2, action="append", metavar=("DOWN", "UP"))
    parser.add_argument("--trouble-every", type=int, default=100)
    args = parser.parse_args()
    os.umask(0)
    name = f"random-{args.seed}-{os.getpid()}"
    os.mkdir(f"{args.mounts[0]}/{name}", 0o755)
    run = Run([f"{mount}/{name}" for mount in args.mounts], args.seed)
    end = time.monotonic() + (args.seconds or 0)
    try:
        run.run(lambda number: time.monotonic() < end if args.seconds else number < args.operations,
                args.quiet_every, args.alone_every, args.trouble, args.trouble_every)
    except (Different, OSError) as error:
        print(f"seed {args.seed}: the last operations:", *run.history, f"then: {error}", sep="\n  ")
        return 1
    shutil.rmtree(f"{args.mounts[0]}/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
