#!/usr/bin/env bash
# The scripts of deploy/ and bench/ when they are called wrongly: help is no error, a mistake is one and leaves nothing behind.
# shellcheck source=lib.sh
source "$(dirname "$0")/lib.sh"
begin scripts 60 60 --bare -- "$@"

# says STATUS TEXT COMMAND…
says() {
  local wanted=$1 text=$2 output status=0
  shift 2
  output=$("$@" 2>&1) || status=$?
  ((status == wanted)) && grep -qF -- "$text" <<<"$output" || { echo "$*: exit status $status: $output"; return 1; }
}

loopback_alone() {
  says 0 'deploy/loopback up' "$loopback" --help
  says 2 'deploy/loopback up' "$loopback" up "$work/none" "$work/mnt" --oss x
  says 2 'deploy/loopback up' "$loopback" up "$work/none" "$work/mnt" --replicas 0
  says 1 "--replicas 4: an OST has at most 3 members" "$loopback" up "$work/none" "$work/mnt" --oss 4 --replicas 4
  says 1 "--replicas 2: each member of an OST is on a server of its own, and --oss says 1" "$loopback" up "$work/none" "$work/mnt" --replicas 2
  [[ ! -e $work/none ]]
  says 1 "is no cluster" "$loopback" status "$work/none"
}

loopback_parts() {
  "$loopback" up "$work/cluster" "$work/mnt" --oss 1 --osts 1 --mounts 0
  says 1 "has no part 'mdss'; it has: mds oss.1" "$loopback" kill "$work/cluster" mdss
  says 1 "has no part 'oss.2'" "$loopback" stop "$work/cluster" oss.2
  says 1 "has no part 'client.1'" "$loopback" start "$work/cluster" client.1
  says 1 "has no part ''" "$loopback" kill "$work/cluster"
  "$loopback" down "$work/cluster"
}

gpu_sizes() {
  says 2 "--size '3X': a whole number with M or G" "$repository/bench/gpu" --size 3X
  NACRE_BIN=$work/none fails "$repository/bench/gpu" --quick >"$work/said" 2>&1 # there are no programs, but its arithmetic is right
  fails grep -qiE 'syntax|unbound|arithmetic' "$work/said"
}

step "deploy/loopback: help, and mistakes" loopback_alone
step "deploy/loopback: parts that a cluster does not have" loopback_parts
step "bench/gpu: sizes" gpu_sizes
