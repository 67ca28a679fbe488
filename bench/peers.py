"""Starts the filesystems that bench/compare --peers measures, all on one fresh disk image, and takes them down again.

Every process is a child of this one (daemons that fork away come back to it as their subreaper), so the end is simple: whatever is
still running below us is killed by its id, then mounts, loop device and image go. The servers of MooseFS and GlusterFS refuse 127.0.0.1:
they run in a network namespace of their own, with an address on its loopback.
"""
import ctypes
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time

ALL = ["ext4", "passthrough", "nacre", "moosefs", "glusterfs"]
PACKAGES = {
    "moosefs": ["moosefs-master", "moosefs-chunkserver", "moosefs-client"],
    "glusterfs": ["glusterfs-server", "glusterfs-client"],
}
ADDRESS = "10.77.0.1"
REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
PR_SET_CHILD_SUBREAPER = 36


def sh(*words, **options):
    done = subprocess.run([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    if done.returncode != 0:
        raise SystemExit(f"bench/compare: {' '.join(map(str, words))}: exit {done.returncode}\n{done.stdout.strip()}")
    return done.stdout.strip()


def wait_until(condition, what, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"bench/compare: {what} did not happen within {seconds} s")
        time.sleep(0.1)


def children():
    return [int(pid) for pid in pathlib.Path("/proc/thread-self/children").read_text().split()]


class Peers:
    """A context manager; `mounts` is a list of (label, path) in the order asked for."""

    def __init__(self, wanted, image_dir, image_size):
        self.wanted, self.image_dir, self.image_size = wanted, pathlib.Path(image_dir), image_size
        self.mounts, self.undo, self.namespace = [], [], None

    def __enter__(self):
        if not self.wanted:
            return self
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        install(self.wanted)
        self.before = set(children())
        try:
            self.make_disk()
            for name in self.wanted:
                mountpoint = self.top / "mnt" / name
                mountpoint.mkdir(parents=True)
                getattr(self, f"start_{name}")(self.disk / name, mountpoint)
                self.mounts.append((name, mountpoint if name != "ext4" else self.disk / name))
        except BaseException:
            self.take_down()
            raise
        return self

    def __exit__(self, *_):
        self.take_down()

    def take_down(self):
        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, signal.SIG_IGN)  # half of a clean-up helps nobody
        for action in reversed(self.undo):
            action()
        self.undo = []

    def make_disk(self):
        self.top = pathlib.Path(tempfile.mkdtemp(prefix="nacre-bench-", dir=self.image_dir))
        self.undo.append(lambda: shutil.rmtree(self.top))
        image, self.disk = self.top / "disk.img", self.top / "disk"
        self.disk.mkdir()
        sh("fallocate", "-l", self.image_size, image)
        device = sh("losetup", "--find", "--show", "--direct-io=on", image)
        self.undo.append(lambda: sh("losetup", "--detach", device))
        sh("mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard", device)
        sh("mount", device, self.disk)
        self.undo.append(lambda: retry(lambda: subprocess.run(["umount", self.disk]).returncode == 0))
        self.undo.append(self.kill_all)

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

    def fuse_mounted(self, mountpoint):
        wait_until(lambda: os.path.ismount(mountpoint), f"mount of {mountpoint}")
        self.undo.append(lambda: subprocess.run(["umount", "--lazy", mountpoint]))

    def in_namespace(self):
        """The command prefix that enters the servers' network."""
        if not self.namespace:
            holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"], start_new_session=True)
            outside = os.readlink("/proc/self/ns/net")
            wait_until(lambda: os.readlink(f"/proc/{holder.pid}/ns/net") != outside, "a new network namespace")
            self.namespace = ["nsenter", f"--net=/proc/{holder.pid}/ns/net"]
            sh(*self.namespace, "ip", "link", "set", "lo", "up")
            sh(*self.namespace, "ip", "address", "add", f"{ADDRESS}/32", "dev", "lo")
        return self.namespace

    def start_ext4(self, store, _mountpoint):
        store.mkdir()

    def start_passthrough(self, store, mountpoint):
        store.mkdir()
        self.spawn(REPOSITORY / "build/bin/nacre-passthrough", store, mountpoint, log=self.top / "passthrough.log")
        self.fuse_mounted(mountpoint)

    def start_nacre(self, store, mountpoint):
        loopback = REPOSITORY / "deploy/loopback"
        self.undo.append(lambda: subprocess.run([loopback, "down", store], stdout=subprocess.DEVNULL))
        sh(loopback, "up", store, mountpoint, "--oss", "2", "--osts", "2")
        wait_until(lambda: os.path.ismount(mountpoint), f"mount of {mountpoint}")

    def start_moosefs(self, store, mountpoint):
        """One master, two chunkservers, goal 1: as many copies as the others keep."""
        enter, log = self.in_namespace(), self.top / "moosefs.log"
        common = "WORKING_USER = root\nWORKING_GROUP = root\nNICE_LEVEL = 0\n"  # -19 by default: ahead of all others, fio included
        master = store / "master"
        master.mkdir(parents=True)
        (master / "metadata.mfs").write_bytes(b"MFSM NEW")
        (master / "exports.cfg").write_text("* / rw,alldirs,admin,maproot=0:0\n")
        (master / "master.cfg").write_text(f"{common}DATA_PATH = {master}\nEXPORTS_FILENAME = {master}/exports.cfg\n")
        self.spawn(*enter, "mfsmaster", "-c", master / "master.cfg", "-f", "start", log=log)
        for number in (1, 2):
            server = store / f"chunkserver{number}"
            (server / "chunks").mkdir(parents=True)
            (server / "hdd.cfg").write_text(f"{server}/chunks\n")
            (server / "server.cfg").write_text(
                f"{common}DATA_PATH = {server}\nHDD_CONF_FILENAME = {server}/hdd.cfg\nMASTER_HOST = {ADDRESS}\n"
                f"CSSERV_LISTEN_PORT = {9421 + number * 10}\nMASTER_RECONNECTION_DELAY = 1\n")
            self.spawn(*enter, "mfschunkserver", "-c", server / "server.cfg", "-f", "start", log=log)
        mount = [*enter, "mfsmount", "-H", ADDRESS, mountpoint]
        wait_until(lambda: subprocess.run(mount, capture_output=True).returncode == 0, "mfsmount")
        self.fuse_mounted(mountpoint)
        sh(*enter, "mfssetgoal", "-r", "1", mountpoint)
        wait_until(lambda: can_write(mountpoint), "a chunkserver of MooseFS taking data")

    def start_glusterfs(self, store, mountpoint):
        """One server with two bricks, distributed."""
        enter, work = self.in_namespace(), store / "glusterd"
        work.mkdir(parents=True)
        socket = work / "glusterd.socket"
        volume_file = work / "glusterd.vol"
        volume_file.write_text(
            "volume management\n  type mgmt/glusterd\n"
            f"  option working-directory {work}\n  option run-directory {work}/run\n  option transport-type socket\n"
            f"  option transport.socket.listen-port 24007\n  option glusterd-sockfile {socket}\nend-volume\n")
        self.spawn(*enter, "glusterd", "--no-daemon", "-f", volume_file, "-p", work / "glusterd.pid", "-l", work / "glusterd.log",
                   log=work / "glusterd.out")
        gluster = [*enter, "gluster", f"--glusterd-sock={socket}", "--mode=script"]
        wait_until(lambda: subprocess.run([*gluster, "pool", "list"], capture_output=True).returncode == 0, "an answer of glusterd")
        bricks = [f"{ADDRESS}:{store}/brick{number}" for number in (1, 2)]
        sh(*gluster, "volume", "create", "bench", *bricks, "force")
        sh(*gluster, "volume", "start", "bench")
        sh(*enter, "glusterfs", f"--volfile-server={ADDRESS}", "--volfile-id=bench", f"--log-file={work}/mount.log", mountpoint)
        self.fuse_mounted(mountpoint)


def retry(action, seconds=30):
    deadline = time.monotonic() + seconds
    while not action() and time.monotonic() < deadline:
        time.sleep(0.2)


def can_write(directory):
    try:
        probe = directory / "probe"
        probe.write_bytes(b"x")
        probe.unlink()
        return True
    except OSError:
        return False


def install(wanted):
    packages = ["fio", "git"] + [package for name in wanted for package in PACKAGES.get(name, [])]
    query = ["dpkg-query", "-W", "-f=${Status}\n", *packages]
    done = subprocess.run(query, capture_output=True, text=True)
    if done.returncode == 0 and done.stdout.count("install ok installed") == len(packages):
        return
    environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    sh("apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages, env=environment)
