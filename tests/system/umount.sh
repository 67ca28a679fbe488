#!/usr/bin/env bash
# umount(8) of a Nacre mount returns when everything that was written is with the servers: through its helper, umount.fuse.nacre.
# shellcheck source=lib.sh
source "$(dirname "$0")/lib.sh"
begin umount 180 180 --own -- "$@"
export PATH=$bin:$PATH # where the helper finds nacre

client_pid() { "$loopback" status "$cluster" | awk '$1 == "client.1" { print $2 }'; }
is_gone() { [[ $(client_pid) == "not" ]] || ! kill -0 "$1" 2>/dev/null; }

# Held back for five seconds by the client: small files, a large one, one that is open twice.
write_much() {
  for i in $(seq 300); do echo "content $i" >"$here/small.$i"; done
  head -c 48M /dev/urandom >"$work/large"
  cp "$work/large" "$here/large"
}

check_all() {
  for i in $(seq 300); do [[ $(<"$here/small.$i") == "content $i" ]] || { echo "small.$i is wrong"; return 1; }; done
  cmp "$work/large" "$here/large"
}

# $1: the command that unmounts
unmount_and_look() {
  local pid
  pid=$(client_pid)
  write_much
  "$@" "$mount"
  is_gone "$pid" || { echo "the client (process $pid) is still at work after: $*"; return 1; }
  fails mountpoint -q "$mount"
  "$loopback" kill "$cluster" mds # whatever was on its way after the answer is lost
  "$loopback" start "$cluster" mds
  "$loopback" start "$cluster" client.1
  check_all
  rm -r "$here"/small.* "$here/large"
}

# The next mount takes the place while the unmount still waits for the client of before.
next_mount_at_once() {
  local address round unmounting
  address=$(awk -F'"' '/^mds/ { print $2 }' "$cluster/etc/client.1.toml")
  for round in 1 2 3; do
    head -c 30M /dev/urandom >"$here/round.$round"
    timeout 60 "$bin/nacre" umount "$mount" &
    unmounting=$!
    while mountpoint -q "$mount"; do sleep 0.01; done
    timeout 60 "$bin/nacre" mount "$address" "$mount"
    wait "$unmounting" || { echo "the unmount failed or took a minute"; return 1; }
    mountpoint -q "$mount"
    rm "$here/round.$round"
  done
  "$bin/nacre" umount "$mount"
  "$loopback" start "$cluster" client.1
}

# A copy of the mount elsewhere keeps the client at work; who unmounts is told so.
copy_elsewhere() {
  unshare --mount --propagation private sleep 6 &
  local other=$!
  echo "$other" >>"$work/pids"
  sleep 0.5
  "$bin/nacre" umount "$mount" 2>"$work/said"
  wait "$other" || true
  grep -q "mounted at $mount in the mount namespace of process [0-9]* (sleep)" "$work/said"
  "$loopback" start "$cluster" client.1
}

# Programs that write meet an error, and the unmount is not kept waiting by them.
while_writing() {
  local pid
  (while echo "more" >>"$here/log"; do :; done) 2>/dev/null &
  pid=$!
  echo "$pid" >>"$work/pids"
  wait_for 10 "the first line" test -s "$here/log"
  timeout 100 "$repository/deploy/umount.fuse.nacre" -l "$mount"
  fails mountpoint -q "$mount"
  "$loopback" start "$cluster" client.1
  kill "$pid" 2>/dev/null || true
  rm -f "$here/log"
}

# With the helper where umount(8) looks for it, seen by this process and its children only.
with_helper_installed() {
  mkdir "$work/upper" "$work/work"
  mount -t overlay -o "lowerdir=/usr/sbin,upperdir=$work/upper,workdir=$work/work" overlay /usr/sbin
  install "$repository/deploy/umount.fuse.nacre" /usr/sbin/
  "$loopback" start "$cluster" client.1
  unmount_and_look umount
  "$loopback" stop "$cluster" client.1
}

busy_is_said() {
  exec 7>"$here/open"
  fails "$repository/deploy/umount.fuse.nacre" "$mount" 2>"$work/said"
  grep -q "using it" "$work/said"
  exec 7>&-
  mountpoint -q "$mount"
}

# When memory is short the kernel takes others first.
is_spared() {
  [[ $(<"/proc/$(client_pid)/oom_score_adj") == -800 ]]
}

if [[ $(</proc/self/oom_score_adj) == 0 ]] && (echo -800 >/proc/self/oom_score_adj) 2>/dev/null; then
  step "the OOM killer is asked to spare the client" is_spared
else
  note "no right to change oom_score_adj here, or it is set already: not looked at"
fi
step "the helper waits for the write-behind" unmount_and_look "$repository/deploy/umount.fuse.nacre"
step "a mount in use stays, and the helper says why" busy_is_said
step "the next mount may come at once" next_mount_at_once
step "a lazy unmount while a program writes" while_writing
if unshare --mount true 2>/dev/null; then
  step "a copy in another namespace is named" copy_elsewhere
fi
export -f fails with_helper_installed unmount_and_look write_much check_all client_pid is_gone
export loopback cluster repository work mount here
"$loopback" stop "$cluster" client.1 # or its mount would live on in the namespace
if unshare --mount true 2>/dev/null; then
  step "umount(8) waits for it" unshare --mount --propagation private bash -euo pipefail -c with_helper_installed
else
  note "no mount namespaces here: umount(8) itself is left out"
fi
