#!/usr/bin/env bash
# A backup of the MDT of a running MDS, and the MDT restored from it after the MDS has lost its disk: what was there then is there with its
# bytes, clients of before are told, nothing that is made afterwards meets an object of the time between, and the doctor puts right the rest.
# shellcheck source=lib.sh
source "$(dirname "$0")/lib.sh"
begin mdt_backup 180 180 --own -- "$@"
nacre() { "$bin/nacre" "$@"; }
dir=$cluster mds=unix:$cluster/mds.sock backup=$work/backup mdt=$cluster/mdt

# many DIRECTORY: files in the MDT, files in objects, a file of several stripes.
many() {
  local i
  mkdir "$1"
  for i in $(seq 40); do head -c $((i * 100)) /dev/urandom >"$1/small.$i"; done
  for i in $(seq 20); do head -c $((i * 20000)) /dev/urandom >"$1/large.$i"; done
  nacre setstripe -c -1 "$1/striped"
  head -c 5000000 /dev/urandom >"$1/striped"
}
sums() { (cd "$here" && find "$@" -type f -print0 | sort -z | xargs -0 sha256sum); }

files_of_before() {
  many "$here/kept"
  many "$here/removed"
  many "$here/emptied"
  mkdir "$here/kept/names"
  ln "$here/kept/small.1" "$here/kept/names/link"
  ln -s ../small.2 "$here/kept/names/symlink"
  setfattr -n user.mark -v 7 "$here/kept/large.3"
  sync -f "$here"
  sums kept >"$work/kept.sums"
}

workload() {
  local i
  mkdir "$here/workload"
  for ((i = 0; ; i++)); do
    head -c $((i % 50 * 2000)) /dev/urandom >"$here/workload/part" && mv "$here/workload/part" "$here/workload/$i"
    ((i % 3 > 0)) || rm "$here/workload/$i"
  done
}
works() { [[ -e $here/workload/20 ]]; }

backup_under_load() {
  in_background workload 2>/dev/null
  local pid=$!
  wait_for 30 "a workload" works
  nacre mdt backup "$backup" --mds "$mds"
  kill_tree "$pid" || true
  [[ $(stat -c %a "$backup") == 600 ]]
  [[ -z $(find "$work" -maxdepth 1 -name '*.partial.*') ]]
  refuses_with 'is there already' nacre mdt backup "$backup" --mds "$mds"
  refuses_with 'No such file or directory' nacre mdt backup "$work/nowhere/backup" --mds "$mds"
  refuses_with 'nacre-mds runs there' nacre mdt backup "$work/other" --mds 127.0.0.1:9
  [[ ! -e $work/other ]]
}

no_room() {
  mkdir "$work/small"
  mount -t tmpfs -o size=64k tmpfs "$work/small"
  refuses_with 'free' nacre mdt backup "$work/small/backup" --mds "$mds"
  [[ -z $(ls -A "$work/small") ]]
  umount "$work/small"
}

nothing_to_destroy() { nacre status --mds "$mds" --json | tr -d ' ' | grep -q '"destroy_queue":0,'; }

# The changes between the backup and the loss.
changes_since() {
  local file
  many "$here/later"
  rm -r "$here/removed"
  for file in "$here"/emptied/*; do : >"$file"; done
  mv "$here/kept" "$here/moved"
  sync -f "$here"
  wait_for 30 "the end of the removed files' objects" nothing_to_destroy
  "$loopback" kill "$cluster" mds # a run of the MDS more, with its ranges of numbers
  "$loopback" start "$cluster" mds
  many "$here/later2"
  sync -f "$here"
}

damaged_ones_are_refused() {
  local size
  size=$(stat -c %s "$backup")
  cp "$backup" "$work/damaged"
  printf 'X' | dd of="$work/damaged" bs=1 seek=$((size / 2)) conv=notrunc status=none
  refuses_with 'damaged or incomplete' nacre mdt restore "$work/damaged" "$mdt"
  head -c $((size / 2)) "$backup" >"$work/cut"
  refuses_with 'ends in the middle' nacre mdt restore "$work/cut" "$mdt"
  refuses_with 'no backup of an MDT' nacre mdt restore "$0" "$mdt"
  [[ ! -e $mdt ]]
}

lost_and_restored() {
  "$loopback" kill "$cluster" mds
  refuses_with "there is an MDT in $mdt" nacre mdt restore "$backup" "$mdt"
  rm -r "$mdt"
  damaged_ones_are_refused
  nacre mdt restore "$backup" "$mdt"
  refuses_with "there is an MDT in $mdt" nacre mdt restore "$backup" "$mdt"
}

kept_is_kept() {
  (cd "$here" && sha256sum --quiet -c "$work/kept.sums")
  [[ $(readlink "$here/kept/names/symlink") == ../small.2 ]]
  [[ $(stat -c %h "$here/kept/small.1") == 2 ]]
  [[ $(getfattr --only-values -n user.mark "$here/kept/large.3") == 7 ]]
  [[ ! -e $here/later && ! -e $here/later2 && ! -e $here/moved ]]
}

# The mount of before goes on, with a new session.
the_mount_is_told() {
  "$loopback" start "$cluster" mds
  wait_for 60 "an answer after the restore" test -e "$here/kept/striped"
  grep -q 'evicted this client.*has ended' "$cluster"/log/client.1.log
  kept_is_kept
}

# None of these may meet an object of the time between, or a refusal of an OST that takes it for a repeat.
new_files_are_their_own() {
  many "$here/after"
  sums after >"$work/after.sums"
  sync -f "$here"
  rm -r "$here/workload"
  sums after | diff - "$work/after.sums"
  nacre status --mds "$mds"
}

doctor_puts_right() {
  "$loopback" down "$cluster"
  fails nacre doctor "$cluster" >"$work/found"
  grep -q 'does not exist' "$work/found"                                       # made since
  grep -q "(/.*/removed/striped).*its 5000000 bytes are lost" "$work/found"    # removed since
  grep -q "(/.*/emptied/large.20).*its 400000 bytes are lost" "$work/found"    # emptied since
  fails grep -E '/(kept|after)/' "$work/found"
  nacre doctor "$cluster" --repair
  nacre doctor "$cluster" --data
}

all_is_well() {
  "$loopback" up "$cluster" "$mount"
  kept_is_kept
  sums after | diff - "$work/after.sums"
  [[ $(stat -c %s "$here/removed/striped") == 0 && $(stat -c %s "$here/removed/small.7") == 700 ]]
  rm -r "$here"/{removed,emptied}
  many "$here/last"
}

step "files" files_of_before
step "a backup while a workload runs, never over something" backup_under_load
step "no room for a backup" no_room
step "more files, some removed, some emptied, all moved" changes_since
step "the MDT is lost; damaged backups are refused; restored" lost_and_restored
step "the mount of before is told, and what was there is there" the_mount_is_told
step "new files are their own" new_files_are_their_own
step "the doctor finds what differs, and repairs it" doctor_puts_right
step "everything is there with its bytes" all_is_well
