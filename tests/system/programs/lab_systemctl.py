#!/usr/bin/env python3
"""As much of systemctl as docs/operating.md uses, for machines that have no systemd.

lab_systemctl.py [enable|start|stop|restart] [--now] [--no-block] UNIT...

The command lines are those of deploy/systemd; a unit is started when it says READY=1. $LAB_RUN is where pid files and logs are, $LAB_BIN where
the programs are. $LAB_RUN/clock, if it is there, sets the clocks of what starts: by how many seconds the time of day and the steady clock differ from
the real machine's.
"""
import ctypes
import os
import pathlib
import re
import shlex
import signal
import socket
import subprocess
import sys
import time

RUN = pathlib.Path(os.environ["LAB_RUN"])
BIN = os.environ["LAB_BIN"]
UNITS = pathlib.Path(__file__).resolve().parents[3] / "deploy/systemd"
PATIENCE = 90  # seconds, as systemd
CLONE_NEWTIME = 0x80


def command_of(unit):
    if unit == "etcd":
        return ["etcd"]
    name, _, instance = unit.partition("@")
    text = (UNITS / f"{name}{'@' if instance else ''}.service.in").read_text(encoding="utf-8")
    line = re.search(r"^ExecStart=(.*)$", text, re.MULTILINE).group(1)
    return shlex.split(line.replace("%BINDIR%", BIN).replace("%i", instance))


def environment_of(unit):
    environment = dict(os.environ)
    if unit == "etcd":
        for line in pathlib.Path("/etc/default/etcd").read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition("=")
            environment[key] = value
    return environment


def pid_of(unit):
    try:
        pid = int((RUN / f"{unit}.pid").read_text(encoding="ascii"))
        state = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except (OSError, ValueError):
        return None
    return None if state in "ZX" else pid


# For what this process starts from now on.
def set_clocks():
    try:
        day, steady = (RUN / "clock").read_text(encoding="ascii").split()
    except FileNotFoundError:
        return
    # The time of day has no namespace. Programs of Go (etcd) do not see this one.
    os.environ |= {"NACRE_CLOCK_SHIFT": day, "LD_PRELOAD": f"{BIN}/libnacre-shifted-clock.so"}
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWTIME) != 0:
        sys.exit(f"no namespace for the steady clock: {os.strerror(ctypes.get_errno())}")
    pathlib.Path("/proc/self/timens_offsets").write_text(f"monotonic {steady} 0\nboottime {steady} 0\n", encoding="ascii")
    subprocess._USE_VFORK = False  # a process that shares this one's memory cannot have another clock


def start(unit, block):
    if pid_of(unit):
        return
    path = RUN / f"{unit}.notify"
    path.unlink(missing_ok=True)
    ready = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    ready.bind(str(path))
    ready.settimeout(1)
    environment = environment_of(unit) | {"NOTIFY_SOCKET": str(path)}
    with open(RUN / f"{unit}.log", "ab") as log:
        process = subprocess.Popen(command_of(unit), env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    (RUN / f"{unit}.pid").write_text(f"{process.pid}\n", encoding="ascii")
    deadline = time.monotonic() + PATIENCE
    while block:
        try:
            if b"READY=1" in ready.recv(4096):
                return
        except TimeoutError:
            pass
        if process.poll() is not None or time.monotonic() > deadline:
            sys.exit(f"{unit} did not start: " + (RUN / f"{unit}.log").read_text(encoding="utf-8", errors="replace")[-2000:])


def stop(unit):
    pid = pid_of(unit)
    if pid is None:
        return
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + PATIENCE
    while pid_of(unit) == pid:
        if time.monotonic() > deadline:
            sys.exit(f"{unit} has not ended")
        time.sleep(0.05)


def main():
    verb, *rest = sys.argv[1:]
    units = [unit for unit in rest if not unit.startswith("--") and not unit.endswith(".target")]
    if verb in ("stop", "restart"):
        for unit in units:
            stop(unit)
    if verb in ("start", "restart") or "--now" in rest:
        set_clocks()
        for unit in units:
            start(unit, block="--no-block" not in rest)


main()
