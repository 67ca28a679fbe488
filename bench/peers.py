"""Starts the filesystems that bench/compare --peers measures, all on one fresh disk image, and takes them down again.

The servers of MooseFS and GlusterFS refuse 127.0.0.1: they run in a network namespace of their own, with an address on its loopback.
"""
import os
import subprocess

from processes import Processes, retry, sh, wait_until

ALL = ["ext4", "passthrough", "nacre", "moosefs", "glusterfs"]
# Peers that run only when they are named: Nacre with two copies of every object, and with a second MDS that keeps a copy of the MDT.
COPIES = {
    "nacre_2_copies": ["--replicas", "2"],
    "nacre_2_mds": ["--mds", "2", "--etcd", "1"],
}
PACKAGES = {
    "moosefs": ["moosefs-master", "moosefs-chunkserver", "moosefs-client"],
    "glusterfs": ["glusterfs-server", "glusterfs-client"],
}
ADDRESS = "10.77.0.1"


class Peers(Processes):
    """`mounts` is a list of (label, path) in the order asked for."""

    def __init__(self, wanted, image_dir, image_size):
        super().__init__(image_dir)
        self.wanted, self.image_size = wanted, image_size
        self.mounts, self.namespace = [], None

    def __enter__(self):
        return super().__enter__() if self.wanted else self

    def start(self):
        install(self.wanted)
        self.make_disk()
        for name in self.wanted:
            mountpoint = self.top / "mnt" / name
            mountpoint.mkdir(parents=True)
            if name in COPIES:
                self.start_nacre(self.disk / name, mountpoint, options=COPIES[name])
            else:
                getattr(self, f"start_{name}")(self.disk / name, mountpoint)
            self.mounts.append((name, mountpoint if name != "ext4" else self.disk / name))

    def make_disk(self):
        image, self.disk = self.top / "disk.img", self.top / "disk"
        self.disk.mkdir()
        sh("fallocate", "-l", self.image_size, image)
        device = sh("losetup", "--find", "--show", "--direct-io=on", image)
        self.undo.append(lambda: sh("losetup", "--detach", device))
        sh("mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard", device)
        sh("mount", device, self.disk)
        self.undo.append(lambda: retry(lambda: subprocess.run(["umount", self.disk]).returncode == 0))
        self.undo.append(self.kill_all)

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
        wait_until(lambda: os.path.ismount(mountpoint), f"mount of {mountpoint}")
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
        wait_until(lambda: os.path.ismount(mountpoint), f"mount of {mountpoint}")


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
