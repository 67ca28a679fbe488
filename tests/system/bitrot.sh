#!/usr/bin/env bash
# One flipped byte on the disk of an OST: reading that file fails with EIO, the OSS's log and `nacre status` name file, object and block,
# every other file reads, and doctor finds the block. (Acceptance 4.)
# shellcheck source=lib.sh
source "$(dirname "$0")/lib.sh"
export NACRE_OST_SIZE=$((256 << 20)) # small enough to search
begin bitrot 120 300 --own -- "$@"
files=$(choose 20 200)

write_files() {
  for number in $(seq "$files"); do
    "$programs/marked_file.py" write "$here/file$number" "$number"
  done
  sync -f "$here"
}

# Runs COMMAND… while nobody is there who could hold a block in memory.
with_all_stopped() {
  for part in client.1 oss.1 oss.2; do "$loopback" stop "$cluster" "$part"; done
  "$@"
  for part in oss.1 oss.2 client.1; do "$loopback" start "$cluster" "$part"; done
  wait_for 30 "the mount" mountpoint -q "$mount"
}

spoil() {
  local place
  place=$("$programs/marked_file.py" find 7 "$cluster")
  # shellcheck disable=SC2086  # file and offset
  with_all_stopped "$programs/marked_file.py" flip $place
}

read_fails_with_eio() {
  local output
  if output=$("$programs/marked_file.py" check "$here/file7" 7 2>&1); then
    echo "the spoiled file reads without an error"
    return 1
  fi
  grep -q 'Input/output error' <<<"$output" || { echo "not EIO: $output"; return 1; }
}

others_read() {
  for number in $(seq "$files"); do
    ((number == 7)) || "$programs/marked_file.py" check "$here/file$number" "$number"
  done
}

log_names_it() {
  grep -i 'checksum' "$cluster"/log/oss.*.log || { echo "no log of an OSS speaks of a checksum"; return 1; }
  grep -i 'checksum' "$cluster"/log/oss.*.log | grep -i 'object' | grep -qi 'block'
}

# Its exit status is 1 where there are problems.
status_is_bad() { ! "$bin/nacre" status "$mount" >"$work/status"; }

status_names_it() {
  wait_for 10 "a problem in nacre status: the OSS's next heartbeat brings it" status_is_bad
  cat "$work/status"
  grep -i 'checksum' "$work/status" | grep -qi 'object'
}

scrub_says_it_is_lost() {
  ! "$bin/nacre" scrub --now --wait --mds "unix:$cluster/mds.sock" >"$work/scrub" || { echo "exit status 0"; cat "$work/scrub"; return 1; }
  cat "$work/scrub"
  grep -q '1 bad block, LOST' "$work/scrub"
  [[ $(grep -c 'nothing is wrong' "$work/scrub") == $(($(wc -l <"$work/scrub") - 1)) ]]
}

doctor_names_it() {
  "$loopback" down "$cluster"
  ! "$bin/nacre" doctor --data "$cluster" >"$work/doctor.log" 2>&1 || { echo "doctor finds nothing wrong"; return 1; }
  grep -i 'checksum' "$work/doctor.log"
}

step "$files files written and on disk" write_files
step "the byte is flipped, caches are empty" spoil
step "reading the spoiled file fails with EIO" read_fails_with_eio
step "every other file reads" others_read
step "the log names the object and the block" log_names_it
step "nacre status names it" status_names_it
step "a scrub finds it and no other" scrub_says_it_is_lost
step "doctor names it" doctor_names_it
