#!/usr/bin/env bash
# OSTs are added, drained and removed, files moved and spread, with programs at work on two mounts; the MDS is killed in the middle of a drain, and an OST is
# lost for good. Every byte is right all the time. --rounds N: of draining (short: 1, full: 10).
# shellcheck source=lib.sh
source "$(dirname "$0")/lib.sh"
begin growth 420 3600 --own --bare -- "$@"
((rounds > 0)) || rounds=$(choose 1 10)

cluster=$work/cluster mount=$work/mnt.1
export NACRE_OST_SIZE=$((1 << 30)) NACRE_MDS_KEYS='drain_rate = "32M"'
bring_up "$work/mnt" --oss 2 --osts 2 --mounts 2
second_mount=$work/mnt.2

nacre() { "$bin/nacre" "$@" --mds "unix:$cluster/mds.sock"; }
status_of() { { nacre status --json || true; } | python3 -c "
import json, sys
status = json.load(sys.stdin)
ost = next((o for o in status['osts'] if o['index'] == int(sys.argv[1])), None)
$2" "$1"; }
is_drained() { status_of "$1" 'sys.exit(0 if ost and ost.get("drain", {}).get("empty") else 1)'; }
is_up() { status_of "$1" 'sys.exit(0 if ost and ost["up"] else 1)'; }
is_down() { status_of "$1" 'sys.exit(0 if ost and not ost["up"] else 1)'; }
is_removed() { status_of "$1" 'sys.exit(1 if ost else 0)'; }
has_moved_some() { status_of "$1" 'sys.exit(0 if ost["drain"]["moved_files"] > 0 else 1)'; }

osts_of() { "$bin/nacre" getstripe --json "$1" | python3 -c '
import json, sys
for component in json.load(sys.stdin)[0]["components"]:
    print(*component["osts"], sep="\n")' | sort -un; }
lies_on() { osts_of "$1" | grep -qx "$2"; }

# A tree of files of all sizes, over all OSTs, with its checksums; and some more of one size.
make_tree() {
  local i
  "$bin/nacre" setstripe -c 2 -S 64K "$mount"
  mkdir "$mount/tree"
  for i in $(seq 40); do
    head -c $((i * 97 * 1024 + i)) /dev/urandom >"$mount/tree/$i"
  done
  truncate -s 256M "$mount/tree/sparse"
  printf 'in the middle' | dd of="$mount/tree/sparse" bs=1 seek=$((128 << 20)) conv=notrunc status=none
  sync "$mount"/tree/*
  (cd "$mount/tree" && md5sum -- * | sort -k2) >"$work/sums"
  mkdir "$mount/bulk"
  "$bin/nacre" setstripe -c 1 "$mount/bulk"
  for i in $(seq 40); do head -c 4M /dev/urandom >"$mount/bulk/$i"; done
  (cd "$mount/bulk" && md5sum -- *) >"$work/bulk.sums"
}

tree_is_right() {
  local each
  echo 3 >/proc/sys/vm/drop_caches
  for each in "$mount" "$second_mount"; do
    (cd "$each/tree" && md5sum -- * | sort -k2) | diff "$work/sums" - || { echo "$each/tree is not what was written"; return 1; }
  done
}

# Writes files and reads them back on one mount until $work/enough is there.
write_and_verify() {
  local dir=$1 n=0 sum
  mkdir -p "$dir"
  while [[ ! -e $work/enough ]]; do
    n=$((n + 1))
    head -c $((1 + RANDOM * 100)) /dev/urandom >"$dir/new" || return 1
    sum=$(md5sum <"$dir/new") || return 1
    mv "$dir/new" "$dir/$((n % 20))" && echo "$sum" >"$dir/$((n % 20)).sum" || return 1
    [[ $(md5sum <"$dir/$((n % 20))") == "$sum" ]] || { echo "$dir/$((n % 20)) is not what was written"; return 1; }
  done
  touch "$work/ended.$(basename "$dir")"
}

# Random writes into one large file, each block verified, for as long as the work goes on.
fio_verify() {
  while [[ ! -e $work/enough ]]; do
    fio --name=verify --filename="$second_mount/fio" --size=24M --rw=randwrite --bs=4k-64k --verify=crc32c --verify_fatal=1 --do_verify=1 \
      --ioengine=psync --rate=8M --verify_state_save=0 --minimal >"$work/fio.log" 2>&1 || return 1
  done
  touch "$work/ended.fio"
}

start_work() {
  in_background write_and_verify "$mount/w1"
  echo $! >"$work/worker.w1"
  in_background write_and_verify "$second_mount/w2"
  echo $! >"$work/worker.w2"
  have fio || { note "no fio: without it"; touch "$work/ended.fio"; return 0; }
  in_background fio_verify
  echo $! >"$work/worker.fio"
}

still_works() {
  local worker
  for worker in "$work"/worker.*; do kill -0 "$(<"$worker")" || { echo "$worker has ended: something was wrong"; cat "$work/fio.log"; return 1; }; done
}

# One more server, with OST 4.
add_ost() {
  sed -e '/^\[\[oss.ost\]\]/,$d' -e "s/^listen = .*/listen = \"127.0.0.1:$((20000 + RANDOM % 12000))\"/" "$cluster/etc/oss.2.toml" >"$cluster/etc/oss.3.toml"
  printf '[[oss.ost]]\nindex = 4\ndirectory = "%s/ost.4"\nsize = %s\n' "$cluster" "$NACRE_OST_SIZE" >>"$cluster/etc/oss.3.toml"
  "$bin/nacre-oss" --config "$cluster/etc/oss.3.toml" --format
  "$loopback" start "$cluster" oss.3
  wait_for 30 "OST 4 is up" is_up 4
  local i
  mkdir "$mount/fresh"
  # Which OST is next depends on what the programs make in between: ten files in a row have missed it.
  for i in $(seq 100); do
    head -c 1M /dev/urandom >"$mount/fresh/$i"
    ! lies_on "$mount/fresh/$i" 4 || return 0
  done
  echo "no new file lies on OST 4"
  return 1
}

is_even() { nacre ost rebalance --dry-run --threshold 1 | grep -q "they are even"; }
is_uneven() { ! is_even; }
has_spread_some() { status_of 0 'sys.exit(0 if status["rebalance"]["moved_files"] > 0 else 1)'; }

# OST 4, which is new, gets its share.
spread() {
  wait_for 30 "the new OST is emptier than the others" is_uneven
  nacre ost rebalance --dry-run --threshold 1
  if ((full == 1)); then
    nacre ost rebalance --threshold 1
    wait_for 60 "a file has been spread" has_spread_some
    "$loopback" kill "$cluster" mds
    sleep 1
    "$loopback" start "$cluster" mds
  fi
  nacre ost rebalance --wait --threshold 1
  # The programs go on writing: what was even at its end need not be a moment later.
  nacre ost rebalance --dry-run --threshold 4 | grep "they are even" || { nacre ost rebalance --dry-run --threshold 1; return 1; }
  # These are older than OST 4, so whatever lies there was moved; how many of them, the programs' own files decide.
  files_on 4 | grep -qE '^/(bulk|tree)/' || { echo "no file has come to OST 4 but new ones:"; files_on 4; return 1; }
  echo 3 >/proc/sys/vm/drop_caches
  (cd "$second_mount/bulk" && md5sum -- *) | diff "$work/bulk.sums" -
  rm -r "$mount/bulk"
  still_works
}

move_files() {
  local file before
  for file in 40 37 sparse; do
    before=$(md5sum <"$mount/tree/$file")
    "$bin/nacre" migrate -c 3 -S 128K "$second_mount/tree/$file"
    [[ $("$bin/nacre" getstripe -c "$mount/tree/$file") == 3 ]] || { echo "$file has another layout than it was given"; return 1; }
    [[ $(md5sum <"$mount/tree/$file") == "$before" ]] || { echo "$file has changed"; return 1; }
  done
  (($(stat -c %b "$mount/tree/sparse") < 2048)) || { echo "the sparse file takes $(stat -c %b "$mount/tree/sparse") blocks"; return 1; }
  "$bin/nacre" migrate -c 1 -o 4 "$mount/tree/5"
  [[ $(osts_of "$mount/tree/5") == 4 ]]
  refuses_with "takes no new files" "$bin/nacre" migrate -c 1 -o 99 "$mount/tree/5"
}

# Programs have it open, and write: each of them finds its bytes.
move_what_is_written() {
  local i
  for i in $(seq 5); do "$bin/nacre" migrate -c $((1 + i % 3)) "$second_mount/fio" || echo "left where it is, as it is written all the time"; done
}

drain() {
  local ost=$1
  nacre ost drain "$ost"
  wait_for 60 "a file has moved" has_moved_some "$ost"
  "$loopback" kill "$cluster" mds
  sleep 1
  "$loopback" start "$cluster" mds
  wait_for 240 "OST $ost is drained" is_drained "$ost"
}

# The next round has something to move at once: the programs may not have placed a file there by then.
fill_again() {
  local file
  nacre ost undrain 0
  for file in $(seq 30 39); do "$bin/nacre" migrate -c 2 -S 64K -o 0,1 "$mount/tree/$file"; done
  lies_on "$mount/tree/39" 0
}

remove_drained() {
  nacre ost remove 0
  is_removed 0
  refuses_with "has been removed" nacre ost drain 0
  sleep 3 # its server goes on saying that it is there
  is_removed 0
  refuses_with "on OST 2" nacre ost remove 2
}

files_on() { nacre ost remove "$1" --list --dry-run | grep '^/' || true; }

# OST 4 is gone for good, with one file on it.
lose_ost() {
  local file begin
  head -c 1M /dev/urandom >"$mount/lost" && "$bin/nacre" migrate -c 1 -o 4 "$mount/lost"
  for file in $(files_on 4); do
    [[ $file == /lost ]] || "$bin/nacre" migrate -c 1 -o 1,2,3 "$mount$file"
  done
  [[ $(files_on 4) == /lost ]]
  refuses_with "is up" nacre ost remove 4 --lost
  "$loopback" kill "$cluster" oss.3
  wait_for 30 "OST 4 is down" is_down 4
  in_background timeout 60 cat "$mount/lost"
  nacre ost remove 4 --lost | grep "1 file has lost"
  begin=$SECONDS
  fails timeout 60 cat "$mount/lost"
  fails timeout 60 cat "$second_mount/lost"
  fails wait "$!"
  ((SECONDS - begin < 10)) || { echo "reading what is lost took $((SECONDS - begin)) s"; return 1; }
  nacre ost remove 4 --lost --list | grep -x /lost
  rm "$mount/lost"
  nacre ost remove 4 --lost | grep "0 files have lost"
}

work_ends_well() {
  local which file
  still_works
  touch "$work/enough"
  for which in w1 w2 fio; do wait_for 120 "the end of $which" test -e "$work/ended.$which"; done
  for file in "$mount"/w?/*.sum; do
    [[ $(md5sum <"${file%.sum}") == "$(<"$file")" ]] || { echo "${file%.sum} is not what was written"; return 1; }
  done
}

nothing_is_wrong() {
  wait_for 60 "nacre status has nothing to say" nacre status
  nacre status
}

stores_are_clean() {
  "$loopback" down "$cluster"
  "$bin/nacre" doctor "$cluster" --data
}

step "a tree of files" make_tree
step "programs work on both mounts" start_work
step "an OST is added, and new files use it" add_ost
step "files spread over it" spread
step "files move" move_files
step "the tree is right" tree_is_right
step "a file moves while it is written" move_what_is_written
for round in $(seq "$rounds"); do
  step "an OST is drained, the MDS killed in the middle ($round)" drain 0
  step "the tree is right ($round)" tree_is_right
  ((round == rounds)) || step "it takes files again ($round)" fill_again
done
step "it is removed" remove_drained
step "programs end, and every byte is right" work_ends_well
step "an OST is lost for good" lose_ost
step "the tree is right" tree_is_right
step "nothing is wrong" nothing_is_wrong
step "the stores are clean" stores_are_clean
