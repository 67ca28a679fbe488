#!/usr/bin/env bash
# Large things: a sparse file of 64 GiB, a file over all OSTs, a directory of very many entries, very many small files, thousands of open files, a tree that moves
# while others work in it. (Acceptance 6; the short form is smaller.)
# shellcheck source=lib.sh
source "$(dirname "$0")/lib.sh"
begin scale 240 7200 -- "$@"

sparse_file() {
  local file=$here/sparse gib=$((1 << 30))
  truncate --size=64G "$file"
  for place in 0 1 31 63; do
    printf 'here at %d' "$place" | dd of="$file" bs=1 seek=$((place * gib + 12345)) conv=notrunc status=none
  done
  for place in 0 1 31 63; do
    [[ $(dd if="$file" bs=1 skip=$((place * gib + 12345)) count=$((8 + ${#place})) status=none) == "here at $place" ]]
  done
  [[ $(stat -c %s "$file") -eq $((64 * gib)) ]]
  (($(stat -c %b "$file") * 512 < gib / 8)) || { echo "the holes take space: $(stat -c %b "$file") blocks"; return 1; }
  cmp <(head -c 1M /dev/zero) <(dd if="$file" bs=1M skip=40000 count=1 status=none)
  rm "$file"
}

large_file() {
  [[ -z $cluster ]] || "$bin/nacre" setstripe -c -1 "$here/large"
  "$programs/large_file.py" "$here/large" "$1"
  rm "$here/large"
}

many_entries() { "$programs/many_entries.py" "$here/entries" "$1"; }
open_files() { "$programs/open_files.py" "$here/open" "$1"; }
moving_tree() { "$programs/moving_tree.py" "$here/tree" --seconds "$(choose 5 60)"; }

# Bytes of small files count in the budget of what a client knows, which is as large as its data cache.
small_files() {
  local count=$1 pid kilobytes
  pid=$(cat "$cluster/run/client.1.pid")
  "$programs/small_files.py" "$here/small" "$count" 16000
  kilobytes=$(awk '/^RssAnon/ { print $2 }' "/proc/$pid/status")
  ((kilobytes < 200 * 1024)) || { echo "the client has $kilobytes KiB for itself after $count files"; return 1; }
  rm -r "$here/small"
}

step "a sparse file of 64 GiB" sparse_file
step "a file of $(choose 256 10240) MiB over all OSTs" large_file "$(choose 256 10240)"
step "a directory of $(choose 20000 1000000) entries made, listed, removed" many_entries "$(choose 20000 1000000)"
if [[ -n $cluster ]]; then
  step "$(choose 16000 100000) files of 16,000 bytes in bounded memory" small_files "$(choose 16000 100000)"
else
  note "memory of the client: only where the mount is our own"
fi
step "5,000 files open at once" open_files 5000
step "a tree of three levels moved while others work in it" moving_tree
