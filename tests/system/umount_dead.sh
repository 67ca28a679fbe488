#!/usr/bin/env bash
# nacre umount ends in bounded time whichever server is dead, waits for nobody where nothing is held back, and says what is lost.
# shellcheck source=lib.sh
source "$(dirname "$0")/lib.sh"
begin umount_dead 300 300 --own --bare -- "$@"

soon=15  # seconds for an unmount with nothing held back
most=100 # seconds for any other
cluster=$work/cluster mount=$work/mnt
bring_up "$mount" --oss 1 --osts 1 --mounts 1

pid_of() { "$loopback" status "$cluster" | awk -v name="$1" '$1 == name { print $2 }'; }

is_gone() { ! kill -0 "$1" 2>/dev/null; }

# $1: seconds it may take; leaves its exit status in $status, its words in $work/said.
unmount_within() {
  local pid begun
  pid=$(pid_of client.1)
  begun=$SECONDS status=0
  timeout --kill-after=1 "$1" "$bin/nacre" umount "$mount" 2>"$work/said" || status=$?
  echo "exit status $status after $((SECONDS - begun)) s: $(<"$work/said")"
  ((status != 124 && status != 137)) || { echo "not within $1 s"; return 1; }
  ! mountpoint -q "$mount" || { echo "still mounted"; return 1; }
  wait_for 10 "the end of the client (process $pid)" is_gone "$pid"
}

back() { # the servers that were killed
  for server in "$@"; do "$loopback" start "$cluster" "$server"; done
  "$loopback" start "$cluster" client.1
}

# Everything written is on stable storage; the client holds only a grant of space from the OST.
dead_oss_nothing_held() {
  head -c 4M /dev/urandom >"$mount/synced" && sync "$mount/synced"
  "$loopback" kill "$cluster" oss.1
  unmount_within "$soon" && ((status == 0)) || return 1
  back oss.1
}

dead_mds_nothing_held() {
  echo small >"$mount/small" && sync "$mount/small"
  "$loopback" kill "$cluster" mds
  unmount_within "$soon" && ((status == 0)) || return 1
  back mds
  [[ $(<"$mount/small") == small ]]
}

# The bytes of a closed file leave at once, so the OSS stands still from before they are written until it is killed. Space is granted already,
# or the write itself would wait for the OST.
hold_back() { # $1: a new file; one that replaces another is closed only when its bytes have arrived
  head -c 1M /dev/urandom >"$mount/granted" && sync "$mount/granted"
  mkdir -p "$mount/dir"
  kill -STOP "$(pid_of oss.1)"
  timeout 20 head -c 512K /dev/urandom >"$mount/dir/$1"
}

lost_is_said() { # $1: the file
  ((status == 1)) || { echo "data is lost, and the exit status is $status"; return 1; }
  grep -q "unmounted, but not everything could be written back: .*lost are the last changes of .*/dir/$1" "$work/said"
}

dead_oss_data_lost() {
  hold_back lost.first
  "$loopback" kill "$cluster" oss.1
  unmount_within "$most" && lost_is_said lost.first || return 1
  back oss.1
}

every_server_dead() {
  echo before >"$mount/before" && sync "$mount/before"
  hold_back lost.second
  "$loopback" kill "$cluster" oss.1
  "$loopback" kill "$cluster" mds
  unmount_within "$most" && lost_is_said lost.second || return 1
  back mds oss.1
  [[ $(<"$mount/before") == before ]]
}

step "a dead OSS, nothing held back" dead_oss_nothing_held
step "a dead MDS, nothing held back" dead_mds_nothing_held
step "a dead OSS, data held back" dead_oss_data_lost
step "every server dead" every_server_dead
