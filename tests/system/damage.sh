#!/usr/bin/env bash
# Damage is shown: a damaged table of the MDT in mds.log and nacre status, a flipped byte of an OST with the file's path; nacre path and nacre
# evict; nacre df's figures right after a write and after a full OST.
# shellcheck source=lib.sh
source "$(dirname "$0")/lib.sh"
export NACRE_OST_SIZE=$((256 << 20)) # small enough to search and to fill
begin damage 180 180 --own -- "$@"
nacre() { "$bin/nacre" "$@"; }
dir=$cluster mds=unix:$cluster/mds.sock

# ost_field KEY: of each OST, from JSON
ost_field() { nacre df --mds "$mds" --json | tr -d ' ,' | sed -n "s/^\"$1\"://p"; }

df_right_after_a_write() {
  nacre setstripe -c 1 "$here/counted"
  dd if=/dev/urandom of="$here/counted" bs=1M count=100 conv=fsync,notrunc status=none
  nacre df --mds "$mds"
  nacre df --mds "$mds" | grep -E '^OST' | grep -qE ' 1 objects'
  nacre df --mds "$mds" --json >"$work/df.json"
  python3 - "$work/df.json" <<'PYTHON'
import json, sys
shown = json.load(open(sys.argv[1]))
used = shown["total_bytes"] - shown["available_bytes"]
assert used >= 100 << 20, f"100 MiB are written, {used} bytes are used"
mdt = shown["mdt"]
assert 0 < mdt["used_bytes"] < 1 << 30, mdt  # its own files, not what others have on the disk
PYTHON
}

df_right_after_enospc() {
  fails dd if=/dev/zero of="$here/full" bs=1M count=2000 conv=fsync status=none
  nacre df --mds "$mds" | tee "$work/df.text"
  grep -qE '^OST.* (9[0-9]|100)%' "$work/df.text"
  rm "$here/full"
}

paths_are_found() {
  local fid
  mkdir -p "$here/a/b"
  echo content >"$here/a/b/file"
  ln "$here/a/b/file" "$here/link"
  sync -f "$here"
  fid=$(nacre getstripe "$here/a/b/file" | sed -n 's/^ *fid //p')
  nacre path "$fid" --mds "$mds" | sort >"$work/paths"
  diff "$work/paths" <(printf '%s\n' "/${here##*/}/a/b/file" "/${here##*/}/link" | sort)
  fails nacre path '[0x77:0x1:0x0]' --mds "$mds" 2>"$work/said"
  grep -q 'no file has the FID' "$work/said"
  fails nacre path nonsense --mds "$mds" 2>"$work/said"
  grep -q "'nonsense' is no FID" "$work/said"
}

# A byte of the file's only block on its OST is changed while everything is stopped.
a_flipped_byte() {
  local mark="flip-me-$$-$RANDOM$RANDOM" file place offset
  nacre setstripe -c 1 "$here/flipped"
  { printf '%s' "$mark"; head -c 100000 /dev/urandom; } >"$here/flipped"
  "$loopback" down "$cluster"
  for file in "$cluster"/ost.*/data/blocks.0; do
    offset=$(LC_ALL=C grep -obUaF -m1 "$mark" "$file" | head -n1 | cut -d: -f1) || true
    [[ -z $offset ]] || place=$file:$offset
  done
  [[ -n ${place:-} ]] || { echo "the block was not found"; return 1; }
  printf X | dd of="${place%:*}" bs=1 seek=$((${place##*:} + 3)) conv=notrunc status=none
  "$loopback" up "$cluster" "$mount" >/dev/null
  nacre status --mds "$mds" >/dev/null
  fails cat "$here/flipped" >/dev/null 2>&1
  wait_for 10 "the problem in nacre status" problem_shown
}
problem_shown() {
  fails nacre status --mds "$mds" >"$work/status"
  grep -qE "problem: .*OST [0-9].* object [0-9a-f.]+ .*\(/${here##*/}/flipped\)" "$work/status"
}

a_client_is_evicted() {
  local name
  name=$({ nacre status --mds "$mds" --json || true; } | sed -n 's/^ *"name": "\(.*\)@.*/\1/p')
  [[ $name == *":$mount" ]]
  nacre evict "$name" --mds "$mds" | grep -q "evicted $name"
  grep -q 'an administrator asked for it' "$cluster/log/mds.log"
  fails nacre evict nobody --mds "$mds" 2>"$work/said"
  grep -q "no client is called 'nobody'" "$work/said"
}

# Every byte in the middle of the largest table is changed: nothing that lies there can be read.
a_damaged_table() {
  local table size i
  for i in $(seq 3000); do echo "$i" >"$here/many.$i"; done
  for i in 1 2 3; do "$loopback" stop "$cluster" client.1; "$loopback" stop "$cluster" mds; "$loopback" start "$cluster" mds; "$loopback" start "$cluster" client.1; done
  "$loopback" stop "$cluster" client.1
  "$loopback" stop "$cluster" mds
  table=$(find "$cluster/mdt" -name '*.sst' -printf '%s %p\n' | sort -n | tail -n1 | cut -d' ' -f2)
  [[ -n $table ]] || { echo "the MDT has no table yet"; return 1; }
  size=$(stat -c %s "$table")
  head -c $((size / 2)) /dev/urandom | dd of="$table" bs=4096 seek=1 conv=notrunc status=none
  "$loopback" start "$cluster" mds
  "$loopback" start "$cluster" client.1 || true
  ls -lR "$mount" >/dev/null 2>&1 || true
  fails nacre status --mds "$mds" >"$work/status"
  grep -q 'problem: .*mdt is damaged' "$work/status"
  grep -q ' E mds .*mdt is damaged' "$cluster/log/mds.log"
}

step "nacre df is right at once after a write" df_right_after_a_write
step "nacre df is right at once after ENOSPC" df_right_after_enospc
step "nacre path turns a FID into paths" paths_are_found
step "a flipped byte in an OST is a problem that names the file" a_flipped_byte
step "nacre evict ends a client's session" a_client_is_evicted
"$loopback" stop "$cluster" client.1
umount -l "$mount" 2>/dev/null || true
"$loopback" start "$cluster" client.1
step "a damaged table of the MDT is a problem" a_damaged_table
