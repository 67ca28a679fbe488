"""Starts the servers and mounts that bench/compare and bench/mounts measure, and takes them down again, whatever happens.

Every process is a child of this one (daemons that fork away come back to it as their subreaper), so the end is simple: whatever is
still running below us is killed by its id, then mounts and directories go.
"""
import ctypes
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

PROGRAM = f"bench/{pathlib.Path(sys.argv[0]).name}"
REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
BIN = pathlib.Path(os.environ.get("NACRE_BIN", REPOSITORY / "build/bin"))
NACRE = ["nacre", "nacre-mds", "nacre-oss", "nacre-client"]  # what deploy/loopback runs
PR_SET_CHILD_SUBREAPER = 36
DOWN_SECONDS = 60  # that deploy/loopback has to end a cluster in order


def fail(text):
    raise SystemExit(f"{PROGRAM}: {text}")


def sh(*words, **options):
    done = subprocess.run([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    if done.returncode != 0:
        fail(f"{' '.join(map(str, words))}: exit {done.returncode}\n{done.stdout.strip()}")
    return done.stdout.strip()


def wait_until(condition, what, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            fail(f"{what} did not happen within {seconds} s")
        time.sleep(0.1)


def retry(action, seconds=30):
    deadline = time.monotonic() + seconds
    while not action() and time.monotonic() < deadline:
        time.sleep(0.2)


def children():
    return [int(pid) for pid in pathlib.Path("/proc/thread-self/children").read_text().split()]


def mounts_below(top):
    """Mountpoints, the innermost first."""
    points = [line.split()[4] for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines()]
    return sorted((point for point in points if point.startswith(f"{top}/")), reverse=True)


def mds_of(cluster):
    """The address of a cluster's MDS, or of all of them, as its clients have it."""
    return re.search(r'^mds = "([^"]*)"', (cluster / "etc/client.1.toml").read_text(), re.MULTILINE)[1]


def status_of(cluster):
    """What `nacre status` knows of a cluster. Its exit status 1 says that something is wrong there, which may be what is measured."""
    words = [BIN / "nacre", "status", "--mds", mds_of(cluster), "--json"]
    done = subprocess.run([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60)
    if done.returncode > 1 or not done.stdout.startswith("{"):
        fail(f"{' '.join(map(str, words))}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout)


def build_missing(needed):
    """Builds the programs of this repository that are not there."""
    missing = [program for program in needed if not (BIN / program).exists()]
    if not missing:
        return
    print(f"{PROGRAM}: building " + ", ".join(missing), file=sys.stderr, flush=True)
    if not (REPOSITORY / "build/build.ninja").exists():
        subprocess.run(["cmake", "--preset", "release"], cwd=REPOSITORY, stdout=sys.stderr, check=True)
    subprocess.run(["ninja", "-C", REPOSITORY / "build", *missing], stdout=sys.stderr, check=True)


def end_by_signals():
    """A signal becomes an exception, which takes down what was started."""
    def end(*_):
        fail("stopped by a signal; everything is taken down")
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, end)


class Processes:
    """A context manager; `start`, of the classes that are made of this one, starts what is measured."""

    def __init__(self, directory):
        self.directory, self.undo = pathlib.Path(directory), []

    def __enter__(self):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self.before = set(children())
        try:
            self.top = pathlib.Path(tempfile.mkdtemp(prefix="nacre-bench-", dir=self.directory))
            self.undo += [self.remove_top, self.unmount_all, self.kill_all]
            self.start()
        except BaseException:
            self.take_down()
            raise
        return self

    def __exit__(self, *_):
        self.take_down()

    def take_down(self):
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(signum, signal.SIG_IGN)  # half of a clean-up helps nobody
        for action in reversed(self.undo):
            try:
                action()
            except (Exception, SystemExit) as error:  # one step that fails must not keep the others from being done
                print(f"{PROGRAM}: while taking down: {error}", file=sys.stderr)
        self.undo = []

    def remove_top(self):
        left = mounts_below(self.top)
        if left:
            fail(f"{', '.join(left)}: still mounted, so {self.top} stays")
        shutil.rmtree(self.top)

    def unmount_all(self):
        for point in mounts_below(self.top):
            subprocess.run(["umount", "--lazy", point])

    def kill_all(self):
        """Ends everything that was started here; what it leaves behind becomes our child and goes in the next turn."""
        def none_left():
            left = set(children()) - self.before
            for pid in left:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            return not left
        retry(none_left)

    def spawn(self, *words, log):
        with open(log, "ab") as out:
            return subprocess.Popen([str(word) for word in words], stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                    start_new_session=True)  # Ctrl-C is for us; we end them in order

    def start_passthrough(self, store, mountpoint):
        store.mkdir()
        self.spawn(BIN / "nacre-passthrough", store, mountpoint, log=self.top / "passthrough.log")
        wait_until(lambda: os.path.ismount(mountpoint), f"mount of {mountpoint}")

    def start_nacre(self, store, mountpoint, mounts=1, options=(), **environment):
        """An MDS, two OSSes of two OSTs and so many mounts: MOUNTPOINT, or MOUNTPOINT.1 and so on. More options of deploy/loopback."""
        loopback = REPOSITORY / "deploy/loopback"
        self.undo.append(lambda: subprocess.run([loopback, "down", store], stdout=subprocess.DEVNULL, timeout=DOWN_SECONDS))
        sh(loopback, "up", store, mountpoint, "--oss", "2", "--osts", "2", "--mounts", str(mounts), *options, env=dict(os.environ, **environment))
