#!/usr/bin/env bash
# Bad situations: each has to be told clearly, and nothing may be lost. A full OST, a full disk under the MDT, a read-only disk, a wrong port, a
# second server on one directory, a directory of another version, a truncated database, every kind of mistake in a configuration. (Acceptance 5.)
# shellcheck source=lib.sh
source "$(dirname "$0")/lib.sh"
begin errors 300 600 --bare -- "$@"

disk=$work/disk mnt=$work/mnt dir=$work/disk/nacre
local_dir=$dir # for the clean-up

# A small disk of its own, so that it can be filled.
make_disk() {
  local device
  mkdir -p "$disk" "$mnt"
  truncate --size=640M "$work/disk.img"
  device=$(losetup --find --show "$work/disk.img")
  mkfs.ext4 -q "$device"
  mount "$device" "$disk"
}

up() { "$bin/nacre" local --dir "$dir" --mount "$mnt" --osts 2 --daemon; }
down() { "$bin/nacre" stop --dir "$dir"; }

# refuses PATTERN… -- COMMAND…: it ends by itself, with an error, and says each of the patterns.
refuses() {
  local patterns=() output status=0
  while [[ $1 != -- ]]; do
    patterns+=("$1")
    shift
  done
  shift
  output=$(timeout 40 "$@" 2>&1) || status=$?
  echo "$ $*"$'\n'"$output"
  ((status > 0 && status < 124)) || { echo "exit status $status, expected an error"; return 1; }
  for pattern in "${patterns[@]}"; do
    grep -qiE -- "$pattern" <<<"$output" || { echo "the message does not say '$pattern'"; return 1; }
  done
}

# mistake DAEMON TOML PATTERN…
mistake() {
  local daemon=$1 file=$work/wrong.toml
  printf '%s\n' "$2" >"$file"
  refuses "${@:3}" -- "$bin/$daemon" --config "$file"
}

wrong_configurations() {
  local mds=$'[mds]\ndirectory = "/nonexistent/mdt"\n'
  mistake nacre-mds "$mds"'memry = "64MiB"' 'wrong.toml:3' "'memry'" "mean 'memory'" 'known are'
  mistake nacre-mds "$mds"'memory = "lots"' 'wrong.toml:3' memory lots size
  mistake nacre-mds "$mds"'memory = "1KiB"' 'wrong.toml:3' memory 1KiB 'from 8M to'
  mistake nacre-mds "$mds"'threads = 0' 'wrong.toml:3' threads '0' '1 to 256'
  mistake nacre-mds "$mds"'threads = "two"' 'wrong.toml:3' threads two '1 to 256'
  mistake nacre-mds "$mds"'session_timeout = 30' 'wrong.toml:3' session_timeout 30 duration
  mistake nacre-mds "$mds"'log = "loud"' 'wrong.toml:3' log loud debug
  mistake nacre-mds "$mds"'leases = 3' 'wrong.toml:3' leases 3 'true or false'
  mistake nacre-mds "$mds"'listen = "127.0.0.1:7710"' 'wrong.toml:3' listen list
  mistake nacre-mds "$mds"'listen = ["0.0.0.0:7710"]' '0\.0\.0\.0:7710' insecure
  mistake nacre-mds $'[mdss]\ndirectory = "/nonexistent"' 'wrong.toml:1' mdss "mean 'mds'"
  mistake nacre-mds $'[mds]\ndirectory = "/nonexistent' 'wrong.toml:2'
  mistake nacre-mds $'[mds]\nthreads = 2' directory 'not set'
  mistake nacre-oss $'[oss]\nmds = "127.0.0.1:7710"' 'no OST' 'oss.ost'
  mistake nacre-oss $'[[oss.ost]]\nindex = 1\ndirectory = "/a"\n[[oss.ost]]\nindex = 1\ndirectory = "/b"' 'index 1' twice
  mistake nacre-oss $'[[oss.ost]]\nindex = 70000\ndirectory = "/a"' 'wrong.toml:2' 70000 65535
  mistake nacre-client $'[client]\nmount = "/nonexistent/m"\nrecovery = "maybe"' 'wrong.toml:3' maybe 'hard, soft'
  refuses nonexistent.toml -- "$bin/nacre-mds" --config "$work/nonexistent.toml"
}

wrong_port() {
  refuses '127\.0\.0\.1:9' -- "$bin/nacre-client" --mds 127.0.0.1:9 --mount "$mnt" --recovery soft --soft-timeout 2s
  refuses '127\.0\.0\.1:9' -- "$bin/nacre" status --mds 127.0.0.1:9
}

first_files() {
  up
  "$programs/marked_file.py" write "$mnt/kept" 1
  cp -r /usr/include/linux/netfilter "$mnt/tree"
  sync -f "$mnt"
}

nothing_lost() {
  "$programs/marked_file.py" check "$mnt/kept" 1
  diff -r /usr/include/linux/netfilter "$mnt/tree"
}

second_server() {
  refuses 'pid [0-9]+|process [0-9]+' "$dir" -- "$bin/nacre" local --dir "$dir" --mount "$work/mnt2" --osts 2 --daemon
  refuses "$dir/mdt" -- "$bin/nacre-mds" --directory "$dir/mdt" --listen 127.0.0.1:7799
  nothing_lost
}

full_ost() {
  refuses 'no space left' -- dd if=/dev/zero of="$mnt/large" bs=1M count=4000 conv=fsync
  refuses 'no space left' -- dd if=/dev/zero of="$mnt/more" bs=1M count=100 conv=fsync
  nothing_lost
  rm -f "$mnt/large" "$mnt/more"
  wait_for 60 "space after the large file was removed" "$programs/large_file.py" "$mnt/again" 64
  rm "$mnt/again"
}

# Fills the small disk again and again, while $work/full exists: what was removed before gives its space back by and by.
keep_disk_full() {
  while [[ -e $work/full ]]; do
    cat /dev/zero >>"$disk/ballast" 2>/dev/null || sleep 0.1
  done
}

disk_is_full() { [[ $(df --output=avail "$disk" | tail -n 1) -eq 0 ]]; }

full_disk_below() {
  touch "$work/full"
  in_background keep_disk_full
  wait_for 60 "filling the disk" disk_is_full
  mkdir "$mnt/names"
  refuses 'no space left' -- "$programs/many_entries.py" "$mnt/names/dir" 1000000
  nothing_lost
  rm "$work/full"
  wait
  rm "$disk/ballast"
  wait_for 60 "creating files after the disk has space again" touch "$mnt/names/after"
  rm -r "$mnt/names"
  nothing_lost
}

read_only_disk() {
  down
  mount -o remount,ro "$disk"
  refuses 'read-only' "$dir" -- "$bin/nacre" local --dir "$dir" --mount "$mnt" --osts 2
  mount -o remount,rw "$disk"
  up
  nothing_lost
}

# damaged FILE PATTERN…: with this file cut to half, the start fails and says so; with the file restored nothing is lost.
damaged() {
  local file=$1
  down
  cp --preserve "$file" "$work/saved"
  truncate --size=$(($(stat -c %s "$file") / 2)) "$file"
  refuses "${@:2}" -- "$bin/nacre" local --dir "$dir" --mount "$mnt" --osts 2
  cp --preserve "$work/saved" "$file"
  up
  nothing_lost
}

truncated_database() {
  damaged "$dir/mdt/CURRENT" mdt
  damaged "$(find "$dir/mdt" -name 'MANIFEST-*' | sort | tail -n 1)" mdt
  damaged "$(find "$dir/ost.0/meta" -name 'MANIFEST-*' | sort | tail -n 1)" 'ost\.0'
}

# other_version DIRECTORY KEY KNOWN PATTERN…: with this superblock's version (bytes 8 to 11) raised the start fails and names both versions; afterwards nothing is lost.
other_version() {
  local database=$1 key=$2 known=$3 now other
  down
  now=$(ldb --db="$database" get --hex "$key")
  other=${now:0:18}63${now:20}
  ldb --db="$database" put --hex "$key" "$other"
  refuses 'version 99' "version $known" "${@:4}" -- "$bin/nacre" local --dir "$dir" --mount "$mnt" --osts 2
  ldb --db="$database" put --hex "$key" "$now"
  up
  nothing_lost
}

another_version() {
  other_version "$dir/mdt" 0x01 3 mdt
  other_version "$dir/ost.1/meta" 0x53 2 'ost\.1'
}

wrong_commands() {
  refuses "unknown command 'statsu'" "mean 'status'" 'known are' -- "$bin/nacre" statsu
  refuses 'jsn' -- "$bin/nacre" df --jsn
  refuses '--dir is required' -- "$bin/nacre" local
}

step "mistakes on the command line" wrong_commands
step "mistakes in a configuration: file, line, key and what is allowed" wrong_configurations
step "a small disk" make_disk
step "a wrong port" wrong_port
step "a filesystem with some files" first_files
step "a second server on the same directory" second_server
step "full OSTs: ENOSPC at the call, and space comes back" full_ost
step "a full disk under MDT and OSTs" full_disk_below
step "a read-only disk" read_only_disk
step "a truncated database" truncated_database
step "a directory of another version" another_version
step "everything still stops in order" down
