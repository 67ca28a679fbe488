#!/usr/bin/env bash
# A process that waits for a dead server can be killed, by kill -9 and by Ctrl-C, and can end by itself; all else goes on.
# shellcheck source=lib.sh
source "$(dirname "$0")/lib.sh"
begin killable 240 300 --own -- "$@"

# Files on one OST each, spread over all, by a client that then forgets what is in them.
make_files() {
  local i
  for i in $(seq 0 15); do
    "$bin/nacre" setstripe -c 1 "$here/on.$i"
    head -c 2M /dev/urandom >"$here/on.$i"
    head -c 100 /dev/urandom >"$here/small.$i"
  done
  "$loopback" stop "$cluster" client.1
  "$loopback" start "$cluster" client.1
}

# The files of which the dead OSS has bytes: those whose first bytes cannot be read within a second.
find_stuck() {
  local i
  for i in $(seq 0 15); do
    timeout --signal=KILL 1 dd if="$here/on.$i" of=/dev/null bs=4k count=1 iflag=direct status=none || echo "$here/on.$i"
  done >"$work/stuck" 2>/dev/null
}

# ended_by SIGNAL COMMAND…: the command hangs; two seconds after the signal it is gone.
ended_by() {
  local signal=$1 pid deadline
  shift
  setsid "$@" >/dev/null 2>&1 &
  pid=$!
  echo "$pid" >>"$work/pids"
  sleep 1
  [[ -e /proc/$pid ]] || { echo "it did not wait: $*"; return 1; }
  kill "-$signal" "$pid"
  deadline=$(($(date +%s%N) + 10000000000))
  while [[ -e /proc/$pid && $(awk '/^State/ { print $2 }' "/proc/$pid/status" 2>/dev/null) != [ZX] ]]; do
    (($(date +%s%N) < deadline)) || { echo "SIG$signal did not end within 10 s: $* (in $(cat "/proc/$pid/wchan"))"; return 1; }
    sleep 0.02
  done
  wait "$pid" || true
}

# Bash has SIGINT ignored for what it starts in the background.
with_sigint() { exec python3 -c 'import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execvp(sys.argv[1], sys.argv[1:])' "$@"; }
export -f with_sigint

# Each command on a file of its own: pages that the kernel reads ahead stay locked while the OST is away.
kill_those_who_wait_for_an_ost() {
  local stuck
  "$loopback" kill "$cluster" oss.1
  find_stuck
  mapfile -t stuck <"$work/stuck"
  ((${#stuck[@]} >= 5)) || { echo "only ${#stuck[@]} files are on the dead OSS"; return 1; }
  for signal in KILL INT TERM; do
    ended_by "$signal" bash -c "with_sigint cat '${stuck[0]}'"
    ended_by "$signal" bash -c "with_sigint dd 'if=${stuck[1]}' of=/dev/null bs=1M iflag=direct"
    ended_by "$signal" bash -c "with_sigint dd if=/dev/zero 'of=${stuck[2]}' bs=1M count=300 conv=notrunc oflag=sync"
    ended_by "$signal" bash -c "with_sigint truncate -s 500000 '${stuck[3]}'"
  done
}

# Many killed readers leave nothing behind that others would need.
others_go_on() {
  local i stuck other read=0
  mapfile -t stuck <"$work/stuck"
  for ((i = 0; i < 40; i++)); do
    timeout --signal=KILL 0.2 cat "${stuck[0]}" >/dev/null || true
    timeout --signal=KILL 0.2 dd if="${stuck[1]}" of=/dev/null bs=1M iflag=direct status=none || true
  done
  for other in "$here"/on.*; do
    grep -qxF "$other" "$work/stuck" && continue
    timeout 10 cat "$other" >/dev/null
    timeout 10 dd if="$other" of=/dev/null bs=1M iflag=direct status=none
    read=$((read + 1))
  done
  ((read > 0))
  timeout 10 ls -l "$here" >/dev/null
}

read_pages() { seq 0 15 | xargs -P 16 -I '{}' dd "if=$1" of=/dev/null bs=4k 'skip={}' count=1 status=none; }

# A write that waits for its OST holds the pages that it writes; it is killed, and others read these. When the OST is back, the kernel is told
# to forget what the write may have left in them, which waits for those who read, who must not wait for the write any more.
kill_a_writer_whose_pages_others_read() {
  local stuck
  mapfile -t stuck <"$work/stuck"
  ended_by KILL python3 -c 'import os, sys; os.pwrite(os.open(sys.argv[1], os.O_RDWR), b"x" * 65536, 0)' "${stuck[-1]}"
  in_background read_pages "${stuck[-1]}"
  sleep 1 # what is tested: they come while the write waits
}

ost_comes_back() {
  "$loopback" start "$cluster" oss.1
  timeout 60 cat "$here"/on.* >/dev/null
}

kill_those_who_wait_for_the_mds() {
  "$loopback" kill "$cluster" mds
  for signal in KILL INT TERM; do
    ended_by "$signal" bash -c "with_sigint stat -f '$here'"
    ended_by "$signal" bash -c "with_sigint cat '$here/small.0'"
    ended_by "$signal" bash -c "with_sigint python3 -c 'import os, signal; signal.signal(signal.SIGINT, signal.SIG_DFL); os.setxattr(\"$here/small.1\", \"user.a\", b\"1\")'"
    ended_by "$signal" bash -c "with_sigint flock '$here/small.2' true"
    ended_by "$signal" bash -c "with_sigint sh -c 'exec <\"$here/small.3\"; sleep 60'"
  done
}

mds_comes_back() {
  "$loopback" start "$cluster" mds
  timeout 60 cat "$here"/small.* >/dev/null
  timeout 10 rm -r "$here"/on.* "$here"/small.*
}

step "files on each OST" make_files
step "kill -9 and Ctrl-C end those who wait for a dead OST" kill_those_who_wait_for_an_ost
step "what needs another OST goes on after many were killed" others_go_on
step "a writer is killed whose pages others read" kill_a_writer_whose_pages_others_read
step "the OST comes back" ost_comes_back
step "kill -9 and Ctrl-C end those who wait for a dead MDS" kill_those_who_wait_for_the_mds
step "the MDS comes back" mds_comes_back
