#!/usr/bin/env bash
# The life of `nacre local`: started, used, refused a second time, stopped, started again, killed, started again, unmounted from outside.
# shellcheck source=lib.sh
source "$(dirname "$0")/lib.sh"
begin local 120 120 --bare -- "$@"
[[ -x $bin/nacre ]] || skip "no build/bin/nacre: build first"

dir=$work/local point=$work/point
local_dir=$dir # for the end of the test: whatever runs there is stopped

start() { "$bin/nacre" local --dir "$dir" --mount "$point" --osts 3 --daemon; }
pid() { cat "$dir/local.pid"; }
is_mounted() { stat -f "$point" && mountpoint -q "$point"; }
is_gone() { ! kill -0 "$1"; }

write_files() {
  cp -r "$repository/proto" "$point/tree"
  head -c 5000000 /dev/urandom >"$work/large"
  cp "$work/large" "$point/large"
}

same_files() {
  diff -r "$repository/proto" "$point/tree"
  cmp "$work/large" "$point/large"
}

# fails_with TEXT COMMAND…: not zero, and the message says so.
fails_with() {
  local text=$1 output
  shift
  if output=$("$@" 2>&1); then
    echo "succeeded: $output"
    return 1
  fi
  grep -qi "$text" <<<"$output" || { echo "says: $output"; return 1; }
}

killed_and_back() {
  echo "on disk" >"$point/synced"
  sync "$point/synced"
  local victim
  victim=$(pid)
  kill -9 "$victim"
  wait_for 10 "the end of the killed process" is_gone "$victim"
  start
  [[ $(cat "$point/synced") == "on disk" ]]
}

unmounted_from_outside() {
  local process
  process=$(pid)
  umount "$point"
  wait_for 30 "the end of nacre local after umount" is_gone "$process"
}

step "starts, formats, makes the mountpoint and mounts" start
step "holds files" write_files
step "refuses to start a second time, and names the process" fails_with "process $(pid)" start
works_there() { [[ $(readlink "/proc/$1/cwd") == "$(readlink -f "$point")" ]]; }
stops_and_names_who_uses_it() {
  (cd "$point" && exec sleep 300) &
  local pid=$!
  echo "$pid" >>"$work/pids"
  wait_for 10 "the process to work there" works_there "$pid"
  "$bin/nacre" stop --dir "$dir" 2>"$work/said"
  kill "$pid"
  grep -q "process $pid (sleep) is still using" "$work/said"
}
step "stops, and names the processes that still use the mount" stops_and_names_who_uses_it
step "says that it is not running" fails_with "not running" "$bin/nacre" stop --dir "$dir"
step "starts again" start
step "has the files" same_files
step "comes back after kill -9, with what was synced" killed_and_back
step "has the files still" same_files
step "ends when somebody unmounts it" unmounted_from_outside
step "nacre doctor finds nothing wrong" "$bin/nacre" doctor "$dir"
