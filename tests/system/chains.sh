#!/usr/bin/env bash
# OSTs of two members on two servers, with programs at work: servers are killed, stopped and frozen by turns, one loses its disks. Reads and writes
# go on, every byte is right, the members are in sync again by themselves and have the same. --rounds N: of each (short: 1, full: 20).
# shellcheck source=lib.sh
source "$(dirname "$0")/lib.sh"
begin chains 420 5400 --own --bare -- "$@"
((rounds > 0)) || rounds=$(choose 1 20)

servers=2
cluster=$work/cluster mount=$work/mnt.1
export NACRE_OST_SIZE=$((1 << 30))
bring_up "$work/mnt" --oss "$servers" --osts 1 --mounts 2 --replicas 2
second_mount=$work/mnt.2

status_json() { "$bin/nacre" status --mds "unix:$cluster/mds.sock" --json || true; }

# Every OST has all its members in sync.
in_sync() {
  status_json | python3 -c '
import json, sys
osts = json.load(sys.stdin)["osts"]
sys.exit(0 if osts and all(sum(m["state"] in ("head", "in sync") for m in o["chain"]["members"]) == 2 for o in osts) else 1)'
}

# The number of the server that has the head of this OST.
head_of() {
  local address port i
  address=$(status_json | python3 -c '
import json, sys
for o in json.load(sys.stdin)["osts"]:
    if o["index"] == int(sys.argv[1]):
        print(o["chain"]["members"][0]["address"])' "$1")
  port=${address##*:}
  for i in $(seq "$servers"); do grep -q "$port" "$cluster/etc/oss.$i.toml" && echo "$i" && return 0; done
  echo "no server has the address $address of the head of OST $1" >&2
  return 1
}

# Writes files with their checksums, reads them again, syncs, until $work/enough is there; the time of each round's end stands in $2. It ends between
# two rounds: whoever is killed between a rename and the checksum beside it leaves what looks like damage.
write_and_verify() {
  local dir=$1 beat=$2 n=0 sum
  mkdir -p "$dir"
  while [[ ! -e $work/enough ]]; do
    n=$((n + 1))
    head -c 3M /dev/urandom >"$dir/new" || return 1
    sum=$(md5sum <"$dir/new") || return 1
    sync "$dir/new" || return 1
    [[ $(md5sum <"$dir/new") == "$sum" ]] || { echo "$dir/new is not what was written"; return 1; }
    mv "$dir/new" "$dir/$((n % 20))" && echo "$sum" >"$dir/$((n % 20)).sum" || return 1
    date +%s.%N >"$beat.new" && mv "$beat.new" "$beat"
  done
  touch "$beat.ended"
}

# longest FILE DD-ARGUMENT…: copies one piece of 64 KiB after the other; the longest time that one took stands in FILE.
longest() {
  local slowest=$1 longest=0 begin took
  shift
  while true; do
    begin=$(date +%s%N)
    dd bs=64K count=1 status=none "$@" || { echo failed >"$slowest"; return 1; }
    took=$((($(date +%s%N) - begin) / 1000000))
    ((took > longest)) && longest=$took && echo "$longest" >"$slowest"
    sleep 0.02
  done
}

work_goes_on() { # within SECONDS: each mount ends a round that began now
  local deadline=$((SECONDS + $1)) i
  for i in 1 2; do
    local since
    since=$(date +%s.%N)
    until python3 -c 'import sys; sys.exit(not float(open(sys.argv[1]).read()) > float(sys.argv[2]))' "$work/beat.$i" "$since"; do
      ((SECONDS < deadline)) || { echo "mount $i has ended no round"; return 1; }
      sleep 0.1
    done
  done
}

start_work() {
  head -c 4M /dev/urandom >"$mount/old" && sync "$mount/old"
  head -c 64K /dev/urandom >"$mount/rewritten" && sync "$mount/rewritten"
  in_background write_and_verify "$mount/w1" "$work/beat.1"
  echo $! >"$work/worker.1"
  in_background write_and_verify "$second_mount/w2" "$work/beat.2"
  echo $! >"$work/worker.2"
  for i in 1 2; do wait_for 60 "the first round of mount $i" test -s "$work/beat.$i"; done
}

# The longest waits of a reader and of a writer, past the cache, are printed: figures, no verdicts.
kill_head() {
  local head workers=()
  head=$(head_of 0)
  rm -f "$work/longest."*
  in_background longest "$work/longest.read" if="$mount/old" of=/dev/null iflag=direct
  workers+=($!)
  in_background longest "$work/longest.write" if=/dev/zero of="$mount/rewritten" oflag=direct,dsync conv=notrunc
  workers+=($!)
  sleep 1
  "$loopback" kill "$cluster" "oss.$head"
  work_goes_on 30
  echo "kill -9 of a head: the longest read took $(<"$work/longest.read") ms, the longest write $(<"$work/longest.write") ms" >>"$work/figures"
  for worker in "${workers[@]}"; do kill_tree "$worker" || true; done
  "$loopback" start "$cluster" "oss.$head"
  wait_for 120 "all members in sync" in_sync
}

stop_one() {
  "$loopback" stop "$cluster" oss.1
  work_goes_on 30
  "$loopback" start "$cluster" oss.1
  wait_for 120 "all members in sync" in_sync
}

# A frozen server: nobody is told that it is away, and when it wakes it believes what it believed.
freeze_head() {
  local head pid
  head=$(head_of 0)
  pid=$(<"$cluster/run/oss.$head.pid")
  kill -STOP "$pid"
  work_goes_on 60 || { kill -CONT "$pid"; return 1; }
  sleep 5
  kill -CONT "$pid"
  wait_for 120 "all members in sync" in_sync
}

lose_disks() {
  "$loopback" kill "$cluster" oss.2
  work_goes_on 30
  rm -rf "$cluster"/ost.*.2
  "$bin/nacre-oss" --config "$cluster/etc/oss.2.toml" --format
  "$loopback" start "$cluster" oss.2
  wait_for 180 "the new disks are filled" in_sync
  work_goes_on 30
}

kill_mds_too() {
  "$loopback" kill "$cluster" mds
  "$loopback" kill "$cluster" oss.1
  "$loopback" start "$cluster" mds
  work_goes_on 60
  "$loopback" start "$cluster" oss.1
  wait_for 120 "all members in sync" in_sync
}

all_right() {
  local i file
  for i in 1 2; do kill -0 "$(<"$work/worker.$i")" || { echo "the work on mount $i has ended: something was wrong"; return 1; }; done
  touch "$work/enough"
  for i in 1 2; do wait_for 60 "the last round of mount $i" test -e "$work/beat.$i.ended"; done
  for file in "$mount"/w?/*.sum; do
    [[ $(md5sum <"${file%.sum}") == "$(<"$file")" ]] || { echo "${file%.sum} is not what was written"; return 1; }
  done
}

# Each server alone has everything.
either_has_it() {
  local i before
  before=$(cd "$mount" && find . -type f -exec md5sum {} + | sort)
  for i in 1 2; do
    "$loopback" kill "$cluster" "oss.$i"
    echo 3 >/proc/sys/vm/drop_caches
    [[ $(cd "$second_mount" && find . -type f -exec md5sum {} + | sort) == "$before" ]] || { echo "without oss.$i the files are others"; return 1; }
    "$loopback" start "$cluster" "oss.$i"
    wait_for 120 "all members in sync" in_sync
  done
}

# The member of one of the OSTs on server $1 that has a piece of the marked file: prints where.
place_on_server() {
  local directory
  while read -r directory; do
    "$programs/marked_file.py" find 7 "$directory" 2>/dev/null && return 0
  done < <(sed -nE 's/^directory = "(.*)"/\1/p' "$cluster/etc/oss.$1.toml")
  echo "server $1 has no piece of the marked file" >&2
  return 1
}

scrub() { "$bin/nacre" scrub --now --wait --rate 1G --mds "unix:$cluster/mds.sock"; }

# A flipped byte, at the head as at the member behind it, is found and repaired before anybody reads the file.
scrub_repairs() {
  local i
  "$programs/marked_file.py" write "$mount/marked" 7
  sync -f "$mount/marked"
  for i in 1 2; do
    "$loopback" stop "$cluster" "oss.$i"
    # shellcheck disable=SC2046  # file and offset
    "$programs/marked_file.py" flip $(place_on_server "$i")
    "$loopback" start "$cluster" "oss.$i"
    wait_for 120 "all members in sync" in_sync
    scrub | tee "$work/scrub"
    grep -q '1 bad block, repaired' "$work/scrub" || { echo "the scrub has not found the flipped byte on server $i"; return 1; }
    scrub >"$work/scrub"
    [[ $(grep -c 'nothing is wrong' "$work/scrub") == 4 ]] || { echo "something is wrong still:"; cat "$work/scrub"; return 1; }
  done
  "$programs/marked_file.py" check "$mount/marked" 7
}

stores_are_clean() {
  local store
  "$loopback" down "$cluster"
  for store in "$cluster"/ost.*; do "$bin/nacre" doctor "$store" --data; done
}

step "all members are in sync" wait_for 60 "all members in sync" in_sync
step "two mounts work" start_work
for round in $(seq "$rounds"); do
  step "the head's server is killed ($round)" kill_head
  step "a server is stopped and started ($round)" stop_one
  step "the head's server is frozen and wakes ($round)" freeze_head
  step "a server loses its disks ($round)" lose_disks
  step "the MDS and a server are killed together ($round)" kill_mds_too
done
step "every byte is right" all_right
step "each server alone has everything" either_has_it
step "a scrub repairs a flipped byte, wherever it is" scrub_repairs
step "the stores are clean" stores_are_clean
sed 's/^/  --  /' "$work/figures"
