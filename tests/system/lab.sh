#!/usr/bin/env bash
# Three machines that hold everything twice, and two that mount, each in namespaces of its own and set up as docs/operating.md says, by its own lines.
# With programs at work the machines die, are frozen and cut off from each other and from all, come back with other clocks, a disk is lost, a byte of one
# copy is flipped. The work goes on, nothing is lost, everything is in sync again by itself. Times are printed; only a standstill of 60 s is a failure.
# --rounds N: of each (short: 1, and not of each pair of machines; full: 20).
# shellcheck source=lib.sh
source "$(dirname "$0")/lib.sh"
begin lab 420 14400 --own --bare -- "$@"
((rounds > 0)) || rounds=$(choose 1 20)
need_etcd
have nsenter && have ip || skip "no nsenter or ip: deploy/install-deps installs them (util-linux, iproute2)"

hang=60 # seconds
servers=(m1 m2 m3) nodes=(node1 node2)
declare -A address=([m1]=10.0.0.1 [m2]=10.0.0.2 [m3]=10.0.0.3 [node1]=10.0.0.21 [node2]=10.0.0.22)
all_mds=10.0.0.1:7710,10.0.0.2:7710,10.0.0.3:7710
apart=$(choose 8 15) # seconds that a cut lasts: longer than every lease
# Seconds between two changes of most programs at work. Without them nine of these and three machines' servers share two cores, and most of a round
# is waiting for a turn on one: half as many faults an hour.
export WORK_PAUSE=0.05

# --- machines ---

on() { # NAME COMMAND…: on that machine
  local machine=$1
  shift
  LAB_RUN=$work/$machine/lab LAB_BIN=$bin PATH=$work/path:$bin:$PATH nsenter -t "$(holder "$machine")" --net --mount --uts "$@"
}

# A process that holds the namespaces; its directories are the machine's own.
hold() { # NAME
  mkdir -p "$work/$1"/{lab,var-lib,srv,mnt,run}
  cp -a /etc "$work/$1/etc"
  hold_namespaces "$1" --net --mount --uts --propagation private
}
machine() { # NAME
  local pid
  hold "$1"
  pid=$(holder "$1")
  ip link add "lab-$1" netns "$(holder switch)" type veth peer name eth0 netns "$pid"
  nsenter -t "$(holder switch)" --net ip link set "lab-$1" master lab up
  on "$1" sh -c "
    hostname $1
    mount --bind $work/$1/etc /etc && mount --bind $work/$1/var-lib /var/lib && mount --bind $work/$1/srv /srv
    mount --bind $work/$1/mnt /mnt && mount --bind $work/$1/run /run && mkdir -p /run/nacre /var/lib/nacre /var/lib/etcd
    mkdir -p /srv/disk0
    ip link set lo up && ip address add ${address[$1]}/24 dev eth0 && ip link set eth0 up"
}
# An empty disk, mounted at /srv/disk0.
new_disk() { # MACHINE
  truncate -s 0 "$work/$1/disk" && truncate -s 1G "$work/$1/disk"
  mkfs.ext4 -q "$work/$1/disk"
  on "$1" mount -o loop "$work/$1/disk" /srv/disk0
}
machines() {
  local one
  mkdir "$work/path"
  ln -s "$programs/lab_systemctl.py" "$work/path/systemctl"
  hold switch
  nsenter -t "$(holder switch)" --net sh -c 'ip link add lab type bridge && ip link set lab up'
  for one in "${servers[@]}" "${nodes[@]}"; do machine "$one"; done
  for one in "${servers[@]}"; do new_disk "$one"; done
}

# --- what the page says ---

# The indented lines below each "<!-- lab: MACHINES -->" are run on these machines, in the page's order.
as_the_page_says() {
  python3 - "$repository/docs/operating.md" "$work/blocks" <<'PYTHON'
import pathlib, re, sys
page, out = pathlib.Path(sys.argv[1]).read_text(encoding="utf-8"), pathlib.Path(sys.argv[2])
out.mkdir()
blocks = re.findall(r"<!-- lab: ([^>]*) -->\n\n((?:    .*\n|\n)+)", page)
for i, (machines, block) in enumerate(blocks):
    lines = [line[4:] for line in block.split("\n")]
    (out / f"{i:02d}").write_text(machines + "\n" + "\n".join(lines), encoding="utf-8")
print(len(blocks), "blocks")
sys.exit(not blocks)
PYTHON
  local block one
  for block in "$work"/blocks/*; do
    for one in $(head -n 1 "$block"); do
      tail -n +2 "$block" | sed "s/^N=1 .*/N=${one#m}/" >"$work/block"
      if grep -q '^etcdctl\|^nacre status' "$work/block"; then
        wait_for 120 "what the page says of $(tail -n +2 "$block" | grep -m 1 .)" on "$one" bash -e "$work/block"
      else
        on "$one" bash -e "$work/block" || { echo "on $one:"; cat "$work/block"; return 1; }
      fi
    done
  done
}

# --- looking ---

status_json() { on node1 timeout 20 "$bin/nacre" status --mds "$all_mds" --json || true; }
primary() { # the machine
  status_json | python3 -c 'import json, sys; print(json.load(sys.stdin)["copies"]["primary"])' | grep '^m[123]$'
}
in_sync() {
  status_json | python3 -c '
import json, sys
status = json.load(sys.stdin)
osts = status["osts"]
whole = len(osts) == 3 and all(sum(m["state"] in ("head", "in sync") for m in o["chain"]["members"]) == 2 for o in osts)
sys.exit(0 if whole and all(m["in_sync"] for m in status["copies"]["members"]) else 1)'
}
await_sync() { wait_for 240 "everything in sync" in_sync; }

# --- work ---

worker() { # NODE COMMAND…: at work until the end
  local node=$1
  shift
  in_background on "$node" "$@"
  echo $! >>"$work/workers"
}
verify_with_fio() {
  while [[ ! -e $work/enough ]]; do
    fio --name=lab --directory=/mnt/nacre/fio --size=24M --bs=16k --rw=randwrite --verify=crc32c --verify_fatal=1 --end_fsync=1 --minimal >/dev/null || return 1
    sleep 1
  done
}
commit_with_git() {
  local n=0
  cd /mnt/nacre/git
  # No gc behind the commits: git fsck takes what that packs meanwhile for lost.
  git init -q . && git config gc.auto 0 && git config user.name lab && git config user.email lab@example.org
  while [[ ! -e $work/enough ]]; do
    n=$((n + 1))
    echo "$n" >"file-$((n % 50))" && git add -A && git commit -qm "$n" || return 1
    ((n % 20)) || git fsck --strict >/dev/null || return 1
    sleep $WORK_PAUSE
  done
}
count_with_sqlite() {
  local n=0 file=/mnt/nacre/sqlite/db
  sqlite3 "$file" 'pragma journal_mode = delete; create table t(n integer primary key)' || return 1
  while [[ ! -e $work/enough ]]; do
    n=$((n + 1))
    sqlite3 "$file" "insert into t values($n)" || return 1
    ((n % 20)) || [[ $(sqlite3 "$file" 'pragma integrity_check; select count(*) from t') == $'ok\n'$n ]] || { echo "$n rows were inserted"; return 1; }
    sleep $WORK_PAUSE
  done
}
start_work() {
  on node1 mkdir /mnt/nacre/{records,acked,fio}
  on node2 mkdir /mnt/nacre/{names,git,sqlite}
  on node1 "$programs/marked_file.py" write /mnt/nacre/marked 7
  worker node1 "$programs/steady_work.py" records /mnt/nacre/records "$work/records.log"
  worker node2 "$programs/steady_work.py" names /mnt/nacre/names "$work/names.log"
  worker node1 "$programs/acked_writes.py" write /mnt/nacre/acked "$work/acked.log"
  worker node2 "$programs/steady_work.py" watch /mnt/nacre/records "$work/records.log"
  export -f verify_with_fio commit_with_git count_with_sqlite
  export work
  have fio && worker node1 bash -c verify_with_fio
  have git && worker node2 bash -c commit_with_git
  have sqlite3 && worker node2 bash -c count_with_sqlite
  "$programs/steady_work.py" since 0 60 "$work/records.log" "$work/names.log"
}
still_at_work() {
  local pid
  while read -r pid; do kill -0 "$pid" || { echo "one who worked has ended: something was wrong"; return 1; }; done <"$work/workers"
}

# --- faults ---

units=(etcd nacre-mds nacre-oss@a)
pids_on() { # MACHINE: of its daemons
  local unit
  for unit in "${units[@]}"; do cat "$work/$1/lab/$unit.pid"; done
}
end_of() { ! kill -0 "$@" 2>/dev/null; }
# signal SIGNAL MACHINE: to its daemons, and before them to the witnesses of their ends: a machine that dies takes those with it.
signal() {
  local pids witnesses
  mapfile -t pids < <(pids_on "$2")
  read -ra witnesses < <(for pid in "${pids[@]}"; do cat "/proc/$pid/task/$pid/children"; done | tr '\n' ' ') || true
  kill "-$1" "${witnesses[@]}" "${pids[@]}"
  [[ $1 != KILL ]] || for pid in "${pids[@]}"; do wait_for 10 "the end of a daemon of $2" end_of "$pid"; done
}
other_than() { # MACHINE: the next one
  case $1 in m1) echo m2 ;; m2) echo m3 ;; m3) echo m1 ;; esac
}
# Packets from one to the other vanish without an error: the other's Ethernet address is nobody's.
cut() { # A B
  on "$1" ip neighbor replace "${address[$2]}" lladdr 02:00:00:00:00:ff dev eth0 nud permanent
  on "$2" ip neighbor replace "${address[$1]}" lladdr 02:00:00:00:00:ff dev eth0 nud permanent
}
mend() { # A B
  on "$1" ip neighbor del "${address[$2]}" dev eth0
  on "$2" ip neighbor del "${address[$1]}" dev eth0
}

# dies MACHINE WHAT
dies() {
  local begin
  signal KILL "$1"
  begin=$(now)
  work_goes_on "$begin" "$2"
  sleep 5
  on "$1" systemctl restart --no-block "${units[@]}"
  await_sync
  still_at_work
}
# comes_back_at MACHINE DAY STEADY: it dies, and when it is back its time of day and its steady clock differ so many seconds from the real ones.
comes_back_at() {
  echo "$2 $3" >"$work/$1/lab/clock"
  dies "$1" "a machine dies, to come back with other clocks"
  local unit seen
  for unit in nacre-mds nacre-oss@a; do
    seen=$(stat -L -c %i "/proc/$(<"$work/$1/lab/$unit.pid")/ns/time")
    [[ $seen != $(stat -L -c %i /proc/self/ns/time) ]] || { echo "$unit of $1 has the old steady clock"; return 1; }
    grep -q shifted-clock "/proc/$(<"$work/$1/lab/$unit.pid")/maps" || { echo "$unit of $1 has the old time of day"; return 1; }
  done
}
clocks_are_back() { # by an hour, as soon as it has booted
  local up
  read -r up _ </proc/uptime
  comes_back_at "$(primary)" -3600 "-${up%%.*}"
}
clocks_are_ahead() { comes_back_at "$(other_than "$(primary)")" 86400 2592000; } # by a day, up for a month more
primary_dies() { dies "$(primary)" "the machine of the primary MDS dies"; }
other_dies() { dies "$(other_than "$(primary)")" "another machine dies"; }
freezes() {
  local victim begin
  victim=$(primary)
  signal STOP "$victim"
  begin=$(now)
  work_goes_on "$begin" "the machine of the primary MDS is frozen" || { signal CONT "$victim"; return 1; }
  sleep 15
  signal CONT "$victim"
  await_sync
  still_at_work
}
is_cut() { # A B: neither reaches the other
  fails on "$1" timeout 2 bash -c "exec 3<>/dev/tcp/${address[$2]}/7720"
}
# parted A B SECONDS
parted() {
  local begin status=0
  cut "$1" "$2"
  begin=$(now)
  is_cut "$1" "$2" || status=1
  sleep "$3"
  mend "$1" "$2"
  ((status == 0)) || return 1
  work_goes_on "$begin" "$1 and $2 do not hear each other for $3 s"
  await_sync
  work_goes_on "$(now)" "  and again"
  still_at_work
}
# A mount that does not hear the primary for its lease is evicted, rightly: with that one for less.
node_parted() {
  local first
  first=$(primary)
  parted node1 "$first" 1
  parted node2 "$(other_than "$first")" "$apart"
  ((full == 0)) || parted node1 "$(other_than "$(other_than "$first")")" "$apart"
}
isolated() {
  local victim begin status=0
  victim=$(primary)
  nsenter -t "$(holder switch)" --net ip link set "lab-$victim" nomaster
  begin=$(now)
  is_cut node1 "$victim" || status=1
  work_goes_on "$begin" "the machine of the primary MDS is cut off" || status=1
  sleep 5
  nsenter -t "$(holder switch)" --net ip link set "lab-$victim" master lab
  ((status == 0)) || return 1
  await_sync
  still_at_work
}
disk_is_lost() {
  local victim begin
  victim=$(other_than "$(primary)")
  on "$victim" systemctl stop nacre-oss@a
  begin=$(now)
  on "$victim" umount /srv/disk0
  new_disk "$victim"
  work_goes_on "$begin" "a machine loses its disk"
  on "$victim" nacre-oss --config /etc/nacre/oss-a.toml --format
  on "$victim" systemctl restart nacre-oss@a
  await_sync
  still_at_work
}

# Of a file's two copies: on the disk of a machine that becomes the head of that OST, and has nothing of it in memory.
byte_flips() {
  local one place having=()
  for one in "${servers[@]}"; do
    ! on "$one" "$programs/marked_file.py" find 7 /srv/disk0 >"$work/place.$one" || having+=("$one")
  done
  ((${#having[@]} == 2)) || { echo "the file is on ${having[*]}"; return 1; }
  local victim=${having[0]}
  place=$(<"$work/place.$victim")
  on "$victim" systemctl stop nacre-oss@a
  # shellcheck disable=SC2086  # file and offset
  on "$victim" "$programs/marked_file.py" flip $place
  on "$victim" systemctl start nacre-oss@a
  await_sync
  on "${having[1]}" systemctl restart nacre-oss@a
  await_sync
  on node2 "$programs/marked_file.py" check /mnt/nacre/marked 7
  grep -i checksum "$work/$victim/lab/nacre-oss@a.log" || { echo "$victim has not met the byte that was flipped"; return 1; }
  still_at_work
}

# --- the end ---

nothing_is_lost() {
  local pid
  still_at_work
  touch "$work/enough"
  sleep 3
  while read -r pid; do kill_tree "$pid" || true; done <"$work/workers"
  sleep 1
  on node2 "$programs/steady_work.py" check-records /mnt/nacre/records "$work/records.log"
  on node1 "$programs/steady_work.py" check-names /mnt/nacre/names "$work/names.log"
  on node2 "$programs/acked_writes.py" check /mnt/nacre/acked "$work/acked.log"
}
stores_are_clean() {
  local one store
  await_sync
  for one in "${nodes[@]}"; do on "$one" systemctl stop nacre-client@data; done
  for one in "${servers[@]}"; do on "$one" systemctl stop nacre-oss@a; done
  for one in "${servers[@]}"; do on "$one" systemctl stop nacre-mds etcd; done
  for one in "${servers[@]}"; do
    "$bin/nacre" doctor "$work/$one/var-lib/nacre/mdt"
    for store in 0 1 2; do
      ! on "$one" test -d "/srv/disk0/ost$store" || on "$one" "$bin/nacre" doctor "/srv/disk0/ost$store" --data
    done
  done
}

step "five machines" machines
step "docs/operating.md, as written" as_the_page_says
step "everything is in sync" await_sync
step "programs work on two machines" start_work
for round in $(seq "$rounds"); do
  step "the machine of the primary MDS dies and comes back ($round)" primary_dies
  ((full == 0)) || step "another machine dies and comes back ($round)" other_dies
  step "the machine of the primary MDS is frozen and wakes ($round)" freezes
  for one in $(choose m2 "m1 m2 m3"); do
    other=$(other_than "$one")
    step "$one and $other do not hear each other ($round)" parted "$one" "$other" "$apart"
  done
  step "a mount does not hear a machine, each in turn ($round)" node_parted
  step "the machine of the primary MDS is cut off from all ($round)" isolated
  step "a machine loses the disk of its OSTs ($round)" disk_is_lost
  step "a machine comes back with its clocks set back ($round)" clocks_are_back
  ((full == 0)) || step "another one with its clocks ahead ($round)" clocks_are_ahead
  ((round > 1)) || step "a byte is flipped in one copy" byte_flips
done
step "nothing is lost" nothing_is_lost
step "the stores are clean" stores_are_clean
sed 's/^/  --  /' "$work/figures"
