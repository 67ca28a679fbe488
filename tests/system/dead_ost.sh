#!/usr/bin/env bash
# One OST is killed for good under four mounts with work on all OSTs. Everything that does not need it goes on within 10 s; mounts can be added,
# also one whose client was killed; `rm` frees space on the other OSTs.
# shellcheck source=lib.sh
source "$(dirname "$0")/lib.sh"
begin dead_ost 240 1200 --own --bare -- "$@"

patience=10 # seconds that anything may take which does not need the dead OST
osts=4      # 0 and 1 of oss.1, 2 and 3 of oss.2, which dies
dead="2 3"
cluster=$work/cluster mount=$work/mnt
export NACRE_OST_SIZE=$((1 << 30))
bring_up "$mount" --oss 2 --osts 2 --mounts 4
mounts=("$mount.1" "$mount.2" "$mount.3" "$mount.4")

ost_of() { getfattr --only-values -n nacre.stripes "$1" 2>/dev/null | grep -oE '"osts": *\[[0-9]+' | head -n 1 | grep -oE '[0-9]+$'; }
is_dead() { [[ " $dead " == *" $1 "* ]]; }

# A directory for each mount with a file of 1 MiB on each OST: DIR/on.0, DIR/on.1, …
prepare() {
  local dir=$1 file ost
  mkdir -p "$dir"
  for _ in $(seq 64); do
    file=$(mktemp "$dir/new.XXXXXX")
    head -c 1M /dev/urandom >"$file"
    ost=$(ost_of "$file") || return 1
    mv "$file" "$dir/on.$ost"
    [[ $(find "$dir" -name 'on.*' | wc -l) -eq $osts ]] && sync -f "$dir" && return 0
  done
  echo "no file on each of $osts OSTs among 64: $(ls "$dir")"
  return 1
}

# One round of what does not need the dead OST: data on each other OST, names, attributes of files everywhere, small files.
round_of() {
  local dir=$1 ost
  for ost in $(seq 0 $((osts - 1))); do
    stat -c %s "$dir/on.$ost" >/dev/null || return 1
    is_dead "$ost" && continue
    head -c 64K /dev/urandom | dd of="$dir/on.$ost" bs=64K seek=3 conv=notrunc,fsync status=none || return 1
    dd if="$dir/on.$ost" of=/dev/null bs=1M iflag=fullblock status=none || return 1
  done
  mkdir "$dir/d" && echo small >"$dir/d/small" && mv "$dir/d/small" "$dir/d/other" && [[ $(<"$dir/d/other") == small ]] || return 1
  ls -l "$dir" >/dev/null && rm -r "$dir/d"
}

# Rounds for ever; the time of each one's end stands in $2.
work_on() { while round_of "$1"; do date +%s >"$2.new" && mv "$2.new" "$2"; done; }

# A write to the dead OST waits, and must not keep others from their work.
wait_for_dead() { dd if=/dev/zero of="$1/on.${dead%% *}" bs=1M count=1 conv=notrunc,fsync status=none; }

start_work() {
  local i
  for i in 0 1 2 3; do
    in_background work_on "${mounts[$i]}/$i" "$work/beat.$i"
  done
  for i in 0 1 2 3; do wait_for 30 "the first round of mount $i" test -s "$work/beat.$i"; done
}

# For so many seconds no mount's last finished round is older than the patience.
all_go_on() {
  local end=$(($(date +%s) + $1)) i now
  while now=$(date +%s) && ((now < end)); do
    for i in 0 1 2 3; do
      ((now - $(<"$work/beat.$i") <= patience)) || { echo "mount $i has stood still for $((now - $(<"$work/beat.$i"))) s"; return 1; }
    done
    sleep 0.5
  done
}

die() {
  local i
  for i in 0 1; do in_background wait_for_dead "${mounts[$i]}/$i"; done
  "$loopback" kill "$cluster" oss.2
  all_go_on $((2 * patience))
}

within() { timeout --kill-after=1 "$patience" "$@" || { echo "not within $patience s: $*"; return 1; }; }

add_mount() {
  sed "s#$mount.4#$mount.5#" "$cluster/etc/client.4.toml" >"$cluster/etc/client.5.toml"
  within "$loopback" start "$cluster" client.5
  within stat "$mount.5/0/on.0" "$mount.5/1/on.3" >/dev/null
  within bash -c "head -c 300K /dev/urandom >'$mount.5/new' && cat '$mount.5/new' >/dev/null"
}

# Bytes that are not free on the OSTs that live. (nacre status itself fails: it reports the dead ones.)
used() {
  { "$bin/nacre" status --mds "unix:$cluster/mds.sock" --json || true; } | python3 -c '
import json, sys
osts = json.load(sys.stdin)["osts"]
print(sum(o["total_bytes"] - o["available_bytes"] for o in osts if o["up"]))'
}

remove_frees() {
  local dir=$mount.3/space before i
  within mkdir "$dir"
  for i in $(seq 8); do within dd if=/dev/urandom of="$dir/$i" bs=1M count=8 iflag=fullblock status=none || return 1; done
  within sync -f "$dir/1"
  before=$(used)
  within rm -r "$dir" "$mount.3/everywhere" # of which some lies on a dead OST
  wait_for $((2 * patience)) "space on the OSTs that live" freed "$before"
}
freed() { (($(used) + 40 * 1024 * 1024 <= $1)); }

killed_mount_comes_back() {
  "$loopback" kill "$cluster" client.5
  within "$loopback" start "$cluster" client.5
  within ls -l "$mount.5" >/dev/null
  within bash -c "echo again >'$mount.5/again'"
}

for i in 0 1 2 3; do step "mount $i: a file on each OST" prepare "${mounts[$i]}/$i"; done
step "files to be removed, on each OST" prepare "$mount.3/everywhere"
step "all four mounts work" start_work
step "one OSS dies: what does not need it goes on within $patience s" die
step "a mount is added" add_mount
step "rm frees space on the OSTs that live" remove_frees
step "a mount whose client was killed comes back" killed_mount_comes_back
step "the others have not stood still" all_go_on "$patience"
