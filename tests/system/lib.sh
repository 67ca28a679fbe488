# shellcheck shell=bash
# Common ground of the system tests; a script sources it first and calls `begin`.
#
# Every script: THEME.sh [--full] [--rounds N] [--keep] [MOUNTPOINT]. With a MOUNTPOINT it works in a directory of its own there (any filesystem);
# without, it starts a cluster with deploy/loopback. Short by default; --full is the acceptance form. Exit 0: all held; 1: something did not,
# named on the last lines; 77: skipped, with the reason. Whatever happens, it ends within its time limit and takes down what it started.
#
# After `begin`: $repository, $work (a temporary directory on a disk), $cluster (its cluster, if it has one), $mount (and $second_mount), $here
# (an empty directory on the mount), $full (0 or 1), $rounds.
# shellcheck disable=SC2034  # some of these are for the scripts
set -euo pipefail

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
programs=$repository/tests/system/programs
bin=${NACRE_BIN:-$repository/build/bin}
loopback=$repository/deploy/loopback
full=0 rounds=0 keep=0 given='' work='' cluster='' local_dir='' mount='' second_mount='' here='' steps=0

# begin NAME SHORT-SECONDS FULL-SECONDS [--own] [--mounts K] [--local N] [--bare] -- "$@"
# Where no mountpoint is given, a cluster of K mounts is started, `nacre local` with N OSTs, or nothing (--bare; --mounts 0: the script starts it).
# With --own, --local and --bare no mountpoint is taken: such a test breaks servers, or looks at them.
begin() {
  name=$1 short_limit=$2 full_limit=$3
  shift 3
  local own=0 mounts=1 osts=0 bare=0
  while [[ $1 != -- ]]; do
    case $1 in
      --own) own=1 ;;
      --mounts) mounts=$2; shift ;;
      --local) own=1 osts=$2; shift ;;
      --bare) own=1 bare=1 ;;
    esac
    shift
  done
  shift
  parse "$@"
  under_limit "$@"
  [[ $EUID -eq 0 ]] || skip "needs root: it mounts, and acts as several users"
  [[ $own -eq 0 || -z $given ]] || fail "this test takes no mountpoint: it starts a cluster of its own"
  work=$(mktemp -d "${TMPDIR:-/var/tmp}/nacre-$name.XXXXXX")
  trap finish EXIT
  trap 'exit 1' INT TERM HUP
  if ((bare == 1)); then
    [[ -x $bin/nacre ]] || skip "no build/bin/nacre: build first"
    return 0
  fi
  if [[ -n $given ]]; then
    mount=$given
  elif ((osts > 0)); then
    start_local "$osts"
  elif ((mounts > 0)); then
    start_cluster "$mounts"
  else
    return 0
  fi
  place_here
}

# An empty directory on the mount.
place_here() {
  here=$mount/system-test-$name-$$
  mkdir "$here" || fail "cannot make a directory on $mount"
}

parse() {
  while (($# > 0)); do
    case $1 in
      --full) full=1 ;;
      --rounds) rounds=$2; shift ;;
      --keep) keep=1 ;;
      -*) echo "usage: $name.sh [--full] [--rounds N] [--keep] [MOUNTPOINT]" >&2; exit 2 ;;
      *) given=$1 ;;
    esac
    shift
  done
  [[ -z $given || -d $given ]] || { echo "$name: $given is not a directory" >&2; exit 2; }
}

# Runs the script again under its time limit. `timeout` signals the whole process group, this shell's clean-up included.
under_limit() {
  [[ -z ${NACRE_UNDER_LIMIT:-} ]] || { unset NACRE_UNDER_LIMIT; return 0; }
  local limit=$((full == 1 ? full_limit : short_limit))
  local status=0
  NACRE_UNDER_LIMIT=1 timeout --signal=TERM --kill-after=60 "$limit" "$0" "$@" || status=$?
  ((status == 124)) && echo "$name: FAILED: not done within $limit s" >&2 && status=1
  exit "$status"
}

# bring_up MOUNTPOINT OPTION…: the cluster in $cluster, by deploy/loopback.
bring_up() {
  "$loopback" up "$cluster" "$@" >"$work/up.log" 2>&1 || { cat "$work/up.log" >&2; fail "deploy/loopback up"; }
}

start_cluster() {
  [[ -x $loopback && -x $bin/nacre-mds ]] || skip "no deploy/loopback or no build/bin/nacre-mds: build first"
  cluster=$work/cluster mount=$work/mnt
  bring_up "$mount" --oss 2 --osts 2 --mounts "$1"
  (($1 == 1)) || { second_mount=$mount.2 mount=$mount.1; }
}

start_local() {
  [[ -x $bin/nacre ]] || skip "no build/bin/nacre: build first"
  local_dir=$work/local mount=$work/mnt
  mkdir "$mount"
  "$bin/nacre" local --dir "$local_dir" --mount "$mount" --osts "$1" --daemon >"$work/up.log" 2>&1 || { cat "$work/up.log" >&2; fail "nacre local"; }
}

finish() {
  local status=$?
  trap - EXIT INT TERM HUP
  set +e
  [[ -f $work/pids ]] && while read -r pid; do kill_tree "$pid"; done <"$work/pids"
  if ((keep == 1 && status != 0)); then
    echo "$name: kept: $work" >&2
    exit "$status"
  fi
  [[ -n $given && -n $here ]] && timeout 60 rm -rf "$here"
  ((status == 0 || status == 77)) || show_logs
  [[ -n $cluster && -d $cluster ]] && timeout 60 "$loopback" down "$cluster" >/dev/null 2>&1
  [[ -n $local_dir ]] && timeout 60 "$bin/nacre" stop --dir "$local_dir" >/dev/null 2>&1
  for pid in $(cluster_pids); do kill -KILL "$pid"; done
  unmount_below "$work"
  [[ -n $work ]] && rm -rf --one-file-system "$work"
  ((status == 0)) && echo "$name: passed, $steps steps"
  exit "$status"
}

# in_background COMMAND…: its pid is in $!; it and its children end with the test at the latest.
in_background() {
  "$@" &
  echo $! >>"$work/pids"
}

# hold_namespaces NAME OPTION…: a process in new namespaces, by these options of unshare; `holder NAME` prints its pid. $work/NAME is made for it.
hold_namespaces() {
  mkdir -p "$work/$1"
  unshare "${@:2}" sleep infinity &
  echo $! | tee "$work/$1/holder" >>"$work/pids"
  wait_for 10 "the namespaces of $1" is_apart "$!"
}
holder() { cat "$work/$1/holder"; }
is_apart() { [[ $(readlink "/proc/$1/ns/net") != "$(readlink /proc/self/ns/net)" ]]; }

kill_tree() {
  local child
  # shellcheck disable=SC2013  # the words are numbers
  for child in $(cat "/proc/$1/task/$1/children" 2>/dev/null); do kill_tree "$child"; done
  kill -KILL "$1" 2>/dev/null
}

# Processes of nacre's, and of etcd, that have a path below $work in their command line, or run on a machine of lab.sh: those of this test, whoever
# started them.
cluster_pids() {
  local process
  for process in /proc/[0-9]*; do
    { tr '\0' ' ' <"$process/cmdline"; } 2>/dev/null | grep -q "^[^ ]*\(nacre\|etcd\)[^ ]* .*$work/" ||
      grep -qsz "^LAB_RUN=$work/" "$process/environ" || continue
    basename "$process"
  done
  return 0
}

show_logs() {
  find "$work" -xdev -path '*/log/*.log' -size +0 -exec sh -c 'echo "--- the end of $1"; tail -n 15 "$1"' _ {} \; >&2
}

unmount_below() {
  [[ -n $1 ]] || return 0
  awk -v below="$1/" 'index($5, below) == 1 { print $5 }' /proc/self/mountinfo | sort -r | while read -r point; do
    umount --lazy "$point"
  done
  losetup --list --noheadings --output NAME,BACK-FILE | awk -v below="$1/" 'index($2, below) == 1 { print $1 }' | while read -r device; do
    losetup --detach "$device"
  done
}

skip() { echo "$name: SKIPPED: $*" >&2; exit 77; }
fail() { echo "$name: FAILED: $*" >&2; exit 1; }

# step TEXT COMMAND…: the command has to succeed; its output is shown only when it does not.
step() {
  local text=$1 start=$SECONDS
  shift
  set +e # within a condition the shell would ignore errors in the middle of a function
  (set -e; "$@") >"$work/step.log" 2>&1
  local status=$?
  set -e
  ((status == 0)) || { tail -n 40 "$work/step.log" >&2; fail "$text"; }
  ((steps += 1))
  echo "  ok  $text ($((SECONDS - start)) s)"
}

# fails COMMAND…: the command has to end with an error. (`set -e` does not look at `! COMMAND`.)
fails() {
  ! "$@" || { echo "no error from: $*"; return 1; }
}

# refuses_with TEXT COMMAND…: not zero, and the message says so.
refuses_with() {
  local text=$1 output
  shift
  if output=$("$@" 2>&1); then
    echo "succeeded: $output"
    return 1
  fi
  grep -qF -- "$text" <<<"$output" || { echo "says: $output"; return 1; }
}

# note TEXT: what was left out and why; shown, but neither a success nor a failure.
note() { echo "  --  $*"; }

# choose SHORT FULL: the value for this run.
choose() { ((full == 1)) && echo "$2" || echo "$1"; }

have() { command -v "$1" >/dev/null; }

# For tests of several MDSes: an etcd, Debian's or the one in $NACRE_ETCD, and what the configurations of such a cluster say.
need_etcd() {
  PATH=${NACRE_ETCD:+$NACRE_ETCD:}$PATH
  if ! have etcd || ! have etcdctl; then skip "no etcd or etcdctl: deploy/install-deps installs them (etcd-server, etcd-client)"; fi
}
all_mds() { sed -n 's/^mds = "\(.*\)"/\1/p' "$cluster/etc/client.1.toml"; }
etcd_port() { sed -n 's/^listen-client-urls: .*:\([0-9]*\)$/\1/p' "$cluster/etc/$1.yaml"; }

# wait_for SECONDS WHAT COMMAND…: until the command succeeds.
wait_for() {
  local deadline=$((SECONDS + $1)) what=$2
  shift 2
  until "$@" >/dev/null 2>&1; do
    ((SECONDS < deadline)) || fail "$what did not happen in time"
    sleep 0.1
  done
}

now() { date +%s.%N; }

# work_goes_on TIME WHAT: both workers of steady_work.py have done something that they began after TIME; $hang seconds are waited for it at most.
work_goes_on() {
  local took
  took=$("$programs/steady_work.py" since "$1" "$hang" "$work/records.log" "$work/names.log") || { echo "$took"; return 1; }
  echo "$2: the work went on after $took ms" >>"$work/figures"
}
