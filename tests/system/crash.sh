#!/usr/bin/env bash
# kill -9 of the MDS, of each OSS and of the client daemon under load; N rounds of each (--rounds; 1 by default, 20 with --full).
# Servers: I/O waits, resumes and verifies. Client: the mount comes back and what was fsynced is there. Afterwards doctor finds nothing.
# (Acceptance 3.)
# shellcheck source=lib.sh
source "$(dirname "$0")/lib.sh"
begin crash 300 7200 --own -- "$@"
((rounds > 0)) || rounds=$(choose 1 20)
away=$(choose 2 5) # seconds that a server stays dead

# Runs COMMAND… again and again until $work/stop appears; each complete pass adds a line to $work/passes.
repeat() {
  while [[ ! -e $work/stop ]]; do
    "$@" >"$work/load.log" 2>&1 || { touch "$work/load-failed"; return 1; }
    echo pass >>"$work/passes"
  done
}

start_load() {
  rm -f "$work/passes" "$work/stop"
  touch "$work/passes"
  in_background repeat "$@"
  load=$!
}

stop_load() {
  touch "$work/stop"
  wait "$load" || { tail -n 20 "$work/load.log"; return 1; }
}

load_failed_or_passes() { [[ -e $work/load-failed ]] || (($(wc -l <"$work/passes") >= $1)); }

fio_verify() {
  fio --name=verify --directory="$here" --rw=randwrite --bs=16k --size=16m --numjobs=2 --ioengine=psync --fallocate=none \
    --verify=crc32c --verify_state_save=0 --verify_fatal=1 --do_verify=1 --fsync=50 --randrepeat=0
}

# One pass of data and one of names.
work_hard() {
  fio_verify && "$programs/moving_tree.py" "$here/tree" --seconds 2 && rm -r "$here/tree"
}

server_dies() {
  start_load work_hard
  wait_for 60 "the first bytes of the load" test -e "$here/verify.0.0"
  "$loopback" kill "$cluster" "$1"
  sleep "$away" # the outage itself
  local done_before
  done_before=$(wc -l <"$work/passes")
  "$loopback" start "$cluster" "$1"
  wait_for 90 "a whole pass of the load after $1 came back" load_failed_or_passes $((done_before + 2))
  stop_load
}

client_dies() {
  in_background "$programs/acked_writes.py" write "$here" "$work/acknowledged"
  local writer=$!
  wait_for 60 "the first acknowledged writes" test -s "$work/acknowledged"
  sleep 1 # let it write on
  "$loopback" kill "$cluster" client.1
  wait "$writer" || true # its mount is gone: it ends with an error
  "$loopback" start "$cluster" client.1
  wait_for 60 "the mount" mountpoint -q "$mount"
  "$programs/acked_writes.py" check "$here" "$work/acknowledged"
  rm -r "$here"/acked-* "$work/acknowledged"
}

doctor_is_content() {
  "$loopback" down "$cluster"
  "$bin/nacre" doctor --data "$cluster"
}

for round in $(seq "$rounds"); do
  for server in mds oss.1 oss.2; do
    step "round $round: kill -9 of $server under load" server_dies "$server"
  done
  step "round $round: kill -9 of the client daemon" client_dies
done
step "doctor finds nothing" doctor_is_content
