#!/usr/bin/env bash
# The paths of the data plane between processes on one machine: shared memory by itself, TCP where it is configured, a clear answer where
# what is configured cannot be had; nacre status says which and why; an OSS that is killed is found again; idle, nobody uses a CPU.
# shellcheck source=lib.sh
source "$(dirname "$0")/lib.sh"
begin paths 240 600 --own -- "$@"

status_says() { "$bin/nacre" status "$mount" | grep -qE "$1"; }

# use TRANSPORT PART…: configures the parts anew and starts them again.
use() {
  local part transport=$1
  shift
  for part; do
    sed -i "s/^transport = .*/transport = \"$transport\"/" "$cluster/etc/$part.toml"
    "$loopback" stop "$cluster" "$part"
    "$loopback" start "$cluster" "$part"
  done
}

# A file that is written, synced, and read by a client that has not seen it.
move_bytes() {
  "$programs/large_file.py" "$here/large" "$(choose 32 512)"
  sha256sum "$here/large" >"$work/sum"
  "$loopback" stop "$cluster" client.1
  "$loopback" start "$cluster" client.1
  sha256sum --check --quiet "$work/sum"
}

killed_in_between() {
  in_background sh -c "for i in 1 2 3 4 5 6; do cp '$here/large' '$here/copy' && cmp '$here/large' '$here/copy' || exit 1; done"
  local job=$!
  sleep 1
  "$loopback" kill "$cluster" oss.1
  sleep 2
  "$loopback" start "$cluster" oss.1
  wait "$job"
}

fails_clearly() {
  fails timeout 60 dd if="$here/large" of=/dev/null bs=64k count=16 2>"$work/dd.log"
  grep -qi 'not supported\|Input/output error' "$work/dd.log"
}

# A machine with an RDMA device is tested in tests/rdma.
refuses_rdma() {
  [[ -z $(ls -A /sys/class/infiniband 2>/dev/null) ]] || return 0
  ! use rdma client.1 >/dev/null 2>&1 || return 1
  grep -q 'transport = "rdma" is configured, but' "$cluster/log/client.1.log"
}

ticks() {
  local pid total=0
  for pid in $(cluster_pids); do ((total += $(awk '{ print $14 + $15 }' "/proc/$pid/stat"))); done
  echo "$total"
}

idle() {
  local before used
  before=$(ticks)
  sleep 10 # what is measured: doing nothing
  used=$(($(ticks) - before))
  echo "$used hundredths of a second in 10 s, all processes together"
  ((used <= 50)) # what polls takes hundreds; a slow machine does the heartbeats of four processes in some twenty
}

step "a file over shared memory" move_bytes
step "nacre status says shm" wait_for 60 "status" status_says '127\.0\.0\.1:[0-9]+ shm$'
step "and how much went over it" wait_for 60 "status" status_says '^      shm: [1-9][0-9]* reads of [0-9.]+ [KMGT]iB, '
step "an OSS killed in the middle of it" killed_in_between
step "idle: little CPU in all processes together" idle
step "TCP where the client wants it, and status says why" use tcp client.1
step "a file over TCP" move_bytes
step "nacre status says tcp" wait_for 60 "status" status_says '127\.0\.0\.1:[0-9]+ tcp \(transport = "tcp" is configured\)'
use tcp oss.1 oss.2
use auto client.1
step "a file from a server that offers nothing else" move_bytes
step "nacre status says why not shm and RDMA" wait_for 60 "status" status_says 'tcp \(no shm: the server does not offer it; no rdma: the server does not offer it'
use shm client.1
step "only shm, which cannot be had: an error, no fallback" fails_clearly
use auto oss.1 oss.2
step "and it works again when it can be had" move_bytes
step "only RDMA, without a device: a clear error" refuses_rdma
use auto client.1
