#!/usr/bin/env bash
# The servers of a cluster are replaced by newer ones, one after the other, with programs at work on two mounts: docs/upgrading.md, done.
#   upgrade.sh                    without an older version: the servers are replaced by themselves; stores of other versions are read or refused
#   upgrade.sh OLD_BIN_DIR        from the programs there to those in build/bin, in the order of the document and in the other one, and back
#   upgrade.sh --build COMMIT     builds that commit below $TMPDIR first (about as long as a build takes; it stays there for the next time)
# shellcheck source=lib.sh
source "$(dirname "$0")/lib.sh"

build_old() {
  local commit tree
  commit=$(git -C "$repository" rev-parse --short=12 "$1^{commit}")
  tree=${TMPDIR:-/var/tmp}/nacre-$commit
  if [[ ! -d $tree ]]; then
    git -C "$repository" worktree prune
    git -C "$repository" worktree add --detach "$tree" "$commit" >&2
  fi
  (cd "$tree" && cmake --preset release && cmake --build --preset release --target nacre nacre-mds nacre-oss nacre-client) >&2
  echo "its tree is $tree; 'git worktree remove $tree' takes it away" >&2
  echo "$tree/build/bin"
}

case ${1:-} in
  --build)
    NACRE_OLD_BIN=$(build_old "${2:?--build wants a commit}")
    export NACRE_OLD_BIN
    shift 2
    ;;
  '' | -*) ;;
  *)
    NACRE_OLD_BIN=$(cd "$1" && pwd)
    export NACRE_OLD_BIN
    shift
    ;;
esac
begin upgrade 900 900 --own --bare -- "$@"
new=$bin old=${NACRE_OLD_BIN:-$bin}
[[ -x $old/nacre-mds && -x $old/nacre-oss && -x $old/nacre-client ]] || fail "$old has no programs of Nacre"
hang=60 # seconds
export NACRE_OST_SIZE=$((1 << 30))

# In place of lib.sh's: a mount that was refused keeps waiting whoever looks at it.
show_logs() {
  local log part
  [[ ! -s $work/refused ]] || for part in client.1 client.2; do "$loopback" kill "$cluster" "$part"; done
  for log in "$cluster"/log/*.log; do
    echo "--- the end of $log"
    tail -n 15 "$log"
  done >&2
}

by_old() { NACRE_BIN=$old "$loopback" "$@"; }
by_new() { NACRE_BIN=$new "$loopback" "$@"; }
is_content() { timeout 20 "$new/nacre" status --mds "$(all_mds)"; }
await_content() { wait_for 90 "'nacre status' is content again" is_content; }
parts_of() { (cd "$cluster/etc" && printf '%s\n' "$1".*toml) | sed 's/\.toml$//' | sort -V; }
is_alive() { grep -qE '^State:[[:space:]]+[^ZX]' "/proc/$1/status" 2>/dev/null; }
is_dead() { ! is_alive "$1"; }

# use NAME: what follows is about the cluster of that name.
use() {
  cluster=$work/$1 mount=$work/mnt.$1.1 second_mount=$work/mnt.$1.2
  rm -f "$work/refused"
}
start() { by_old up "$cluster" "${mount%.1}" --mounts 2 "$@"; }

# --- what is stored ---

make_data() {
  local d=$mount/data i
  mkdir -p "$d"/tree/{a,b}/{c,d}/e
  for i in $(seq 60); do
    head -c $((i * 57)) /dev/urandom >"$d/small.$i"
    cp "$d/small.$i" "$d/tree/$( ((i % 2)) && echo a/c || echo b/d)/e/$i"
  done
  mkdir "$d/striped"
  "$old/nacre" setstripe -c -1 -S 256K "$d/striped"
  head -c 40M /dev/urandom >"$d/striped/large"
  head -c 1234567 /dev/urandom >"$d/striped/odd"
  truncate -s 1G "$d/sparse"
  printf 'in the middle' | dd of="$d/sparse" bs=1 seek=$((500 << 20)) conv=notrunc status=none
  ln "$d/small.7" "$d/hard link"
  ln -s 'small.8' "$d/symlink"
  mkfifo -m 600 "$d/fifo"
  setfattr -n user.colour -v green "$d/small.9"
  setfattr -n user.colour -v "$(head -c 500 /dev/zero | tr '\0' x)" "$d/tree"
  chmod 4751 "$d/small.10" && chown 12:34 "$d/small.11" && chmod 1777 "$d/tree/a"
  touch -d '2001-02-03 04:05:06.789012345' "$d/small.12"
  sync -f "$mount"
  manifest "$mount" >"$work/manifest"
}

# All that can be seen of it: bytes, attributes, links, extended attributes.
manifest() {
  (
    cd "$1/data" || exit
    find . -type f -print0 | sort -z | xargs -0 md5sum
    find . ! -name sparse -printf '%p %y %m %n %U %G %s %T@ %l\n' | sort
    find . -print0 | sort -z | xargs -0 getfattr -hd -m '^user\.' 2>/dev/null
    stat -c '%n %s' sparse
  )
}

data_is_right() {
  local each
  echo 3 >/proc/sys/vm/drop_caches
  for each in "$mount" "$second_mount"; do
    manifest "$each" | diff "$work/manifest" - || { echo "$each/data is not what was written"; return 1; }
  done
  (($(stat -c %b "$mount/data/sparse") < 2048)) || { echo "the sparse file takes $(stat -c %b "$mount/data/sparse") blocks"; return 1; }
}

# --- programs at work ---

run_worker() {
  in_background "$@" >>"$work/workers.out" 2>&1
  echo $! >>"$work/workers"
}

# start_work NAME: in directories of that name.
start_work() {
  local job=$1
  echo "$job" >"$work/job"
  rm -f "$work"/{records,names,acked,held}.log
  : >"$work/workers"
  : >"$work/workers.out"
  mkdir "$mount/records.$job" "$mount/acked.$job" "$second_mount/names.$job"
  run_worker "$programs/steady_work.py" records "$mount/records.$job" "$work/records.log"
  run_worker "$programs/steady_work.py" names "$second_mount/names.$job" "$work/names.log"
  run_worker "$programs/acked_writes.py" write "$mount/acked.$job" "$work/acked.log"
  run_worker "$programs/steady_work.py" watch "$second_mount/records.$job" "$work/records.log"
  run_worker "$programs/held_open.py" "$mount/held.$job" "$work/held.log"
  "$programs/steady_work.py" since 0 30 "$work/records.log" "$work/names.log" "$work/held.log"
  wait_for 60 "some work" have_worked
}
have_worked() { (($(wc -l <"$work/acked.log") >= 5 && $(wc -l <"$work/names.log") >= 120)); }

still_at_work() {
  local pid held
  held=$second_mount/held.$(<"$work/job")
  while read -r pid; do is_alive "$pid" || { cat "$work/workers.out"; return 1; }; done <"$work/workers"
  fails flock --nonblock "$held/flock" true
  fails python3 -c 'import fcntl, sys; fcntl.lockf(open(sys.argv[1], "r+"), fcntl.LOCK_EX | fcntl.LOCK_NB)' "$held/posix" 2>/dev/null
}

# Those that wait for a server can be ended, too.
end_work() {
  local pid
  while read -r pid; do kill_tree "$pid" || true; done <"$work/workers"
  while read -r pid; do wait_for 20 "the end of a program that waits" is_dead "$pid"; done <"$work/workers"
}

acknowledged_is_there() {
  local job
  job=$(<"$work/job")
  "$programs/steady_work.py" check-records "$second_mount/records.$job" "$work/records.log"
  "$programs/steady_work.py" check-names "$mount/names.$job" "$work/names.log"
  "$programs/acked_writes.py" check "$second_mount/acked.$job" "$work/acked.log"
}

# --- one after the other ---

restart() {
  "$loopback" stop "$cluster" "$1"
  by_new start "$cluster" "$1"
}

# replace PART: by the new version, while the programs work.
replace() {
  local begin
  begin=$(now)
  restart "$1"
  goes_on "$1" "$begin"
}

# goes_on PART TIME: all programs work again after PART was replaced, which began at TIME.
goes_on() {
  local log all=()
  for log in records names held; do all+=("$work/$log.log"); done
  "$programs/steady_work.py" since "$(now)" "$hang" "${all[@]}"
  await_content
  still_at_work
  echo "$1: the longest wait was $("$programs/steady_work.py" longest "$2" "${all[@]}") ms" >>"$work/figures"
}

# With several MDSes the followers come first.
primary() {
  timeout 20 "$new/nacre" status --mds "$(all_mds)" --json | python3 -c 'import json, sys; print(json.load(sys.stdin).get("copies", {}).get("primary", "mds"))'
}
mds_in_order() {
  local first
  first=$(primary)
  parts_of mds | grep -vx "$first" || true
  echo "$first"
}

# refusal MOUNTPOINT: the words with which the MDS has refused it, by its log; nothing: it has not.
refusal() { grep -F -- "$1@" "$cluster/log/mds.log" | grep -oE 'the client speaks version [0-9]+ of the protocol, this server versions? [0-9]+' | head -n 1; }
is_refused() { [[ -n $(refusal "$1") ]]; }
refused_or_at_work() { is_refused "$mount" || "$programs/steady_work.py" since "$1" 1 "$work/records.log" "$work/names.log"; }

# The MDS of one that has no others. Mounts of the old version go on, or are told why not.
replace_mds() {
  local begin
  begin=$(now)
  restart mds
  wait_for "$hang" "the mounts go on, or are refused in words" refused_or_at_work "$(now)"
  if ! is_refused "$mount"; then
    goes_on mds "$begin"
    return 0
  fi
  wait_for 20 "the second mount is refused in words" is_refused "$second_mount"
  refusal "$mount" >"$work/refused"
}

# A mount of the old version has been refused: nobody hangs who wants to end, and a second one is told at once.
refused_in_words() {
  local begin=$SECONDS
  cp "$cluster/etc/client.1.toml" "$cluster/etc/client.9.toml"
  sed -i "s,^mount = .*,mount = \"$work/mnt.refused\"," "$cluster/etc/client.9.toml"
  mkdir -p "$work/mnt.refused"
  refuses_with "$(<"$work/refused")" timeout 60 "$old/nacre-client" --config "$cluster/etc/client.9.toml"
  rm "$cluster/etc/client.9.toml"
  timeout --signal=KILL 10 stat "$mount/not-known-yet" || true # waits, or fails: but can be ended
  ((SECONDS - begin < 60))
  end_work
}

# A mount of before that was refused may wait for the MDS for ever, also when it is to end.
end_mount() {
  local pid
  pid=$(<"$cluster/run/$1.pid")
  if [[ -s $work/refused ]]; then
    kill -TERM "$pid"
    for _ in $(seq 100); do is_dead "$pid" || sleep 0.1; done
    is_dead "$pid" || echo "$1, of the old version and refused, had to be killed" >>"$work/figures"
    "$loopback" kill "$cluster" "$1"
  else
    "$loopback" stop "$cluster" "$1"
  fi
}

remount() {
  local part
  for part in client.1 client.2; do end_mount "$part"; done
  for part in client.1 client.2; do by_new start "$cluster" "$part"; done
}

# A mount that was refused begins anew as the new version; one that was not is replaced last. All that was acknowledged is there.
replace_mounts() {
  [[ -s $work/refused ]] || { still_at_work && end_work; }
  remount
  acknowledged_is_there
  data_is_right
  await_content
  start_work "again.$(<"$work/job")"
}

work_ends_well() {
  still_at_work
  end_work
  acknowledged_is_there
}

stores_are_clean() {
  "$loopback" down "$cluster"
  "$new/nacre" doctor "$cluster" --data
}

# --- versions of stores ---

# Says by which words PART's old program refuses the store of the new one, or that it takes it.
ask_old() {
  local part=$1 said status=0
  said=$(timeout 15 "$old/nacre-${part%%.*}" --config "$cluster/etc/$part.toml" 2>&1) || status=$?
  if ((status == 124)); then
    echo "$part: the old version takes its store" >>"$work/figures"
  elif grep -qE 'has format version [0-9]+; this (program|server) knows version [0-9]+' <<<"$said"; then
    echo "$part: $(grep -oE 'the (MDT|OST) has format version [0-9]+; this (program|server) knows version [0-9]+.*' <<<"$said" | head -n 1)" >>"$work/figures"
  else
    echo "$part: exit status $status: $said"
    return 1
  fi
}

# The old programs over what the new ones have written: they take it, or refuse it in words and leave it as it is.
going_back() {
  local part
  for part in mds oss.1 oss.2; do ask_old "$part"; done
  by_new up "$cluster" "${mount%.1}"
  await_content
  data_is_right
  stores_are_clean
}

# Database and key of the superblock of each store. (That servers refuse a later version is tested by errors.sh.)
superblocks() {
  local ost
  echo "$cluster/mdt 0x01"
  for ost in "$cluster"/ost.*; do echo "$ost/meta 0x53"; done
}

# set_version DATABASE KEY VERSION: bytes 8 to 11 of the superblock (proto/FORMAT.md), of which only the lowest is not 0.
set_version() {
  local was
  was=$(ldb --db="$1" get --hex "$2")
  ldb --db="$1" put --hex "$2" "${was:0:18}$3${was:20}"
}
versions() {
  local database key
  while read -r database key; do ldb --db="$database" get --hex "$key" | cut -c 19-20; done < <(superblocks)
}

# The superblock alone is that of version 1, whose records are those of version 2 but for what an orderly end leaves none of.
older_stores() {
  local database key
  versions >"$work/versions"
  while read -r database key; do set_version "$database" "$key" 01; done < <(superblocks)
  by_new up "$cluster" "${mount%.1}"
  data_is_right
  stores_are_clean
  versions | diff "$work/versions" -
}

# They are not looked at by a program that does not know them, let alone repaired.
later_stores() {
  local database key version n=1 directory
  while read -r database key; do
    version=$(sed -n "${n}p" "$work/versions")
    directory=${database%/meta}
    set_version "$database" "$key" 63
    refuses_with "has format version 99" "$new/nacre" doctor "$directory"
    refuses_with "has format version 99" "$new/nacre" doctor "$directory" --repair
    set_version "$database" "$key" "$version"
    ((n += 1))
  done < <(superblocks)
  stores_are_clean
}

# --- the ways ---

# upgrade NAME PART…: a cluster of one MDS, its servers replaced in this order.
upgrade() {
  local name=$1 part
  shift
  use "$name"
  step "$name: a cluster of the old version" start --oss 2 --osts 2
  step "$name: data of all kinds" make_data
  step "$name: programs work on two mounts" start_work "$name"
  for part in "$@"; do
    # With mounts that were refused nothing works until they are replaced.
    if [[ $part == mds ]]; then
      step "$name: the MDS is replaced" replace_mds
      [[ ! -s $work/refused ]] || step "$name: mounts are refused ($(<"$work/refused"))" refused_in_words
      [[ ! -s $work/refused ]] || step "$name: the mounts are replaced" replace_mounts
    else
      step "$name: $part is replaced" replace "$part"
    fi
  done
  [[ -s $work/refused ]] || step "$name: the mounts are replaced" replace_mounts
  step "$name: programs end, and everything is there" work_ends_well
  step "$name: data of all kinds is right" data_is_right
  step "$name: the stores are clean" stores_are_clean
}

replace_copies() {
  local part
  for part in $(parts_of oss) $(mds_in_order); do
    echo "$part"
    replace "$part"
  done
}

# The same where everything is there twice.
upgrade_copies() {
  if ! "$old/nacre-mds" --help | grep -q -- --copy; then
    note "the old version has no copies: without them"
    return 0
  fi
  PATH=${NACRE_ETCD:+$NACRE_ETCD:}$PATH
  have etcd || { note "no etcd: without copies"; return 0; }
  use copies
  step "copies: a cluster of the old version" start --oss 3 --osts 1 --replicas 2 --mds 3 --etcd 1
  step "copies: data of all kinds" make_data
  step "copies: everything is in sync" await_content
  step "copies: programs work on two mounts" start_work copies
  step "copies: the servers are replaced" replace_copies
  step "copies: the mounts are replaced" replace_mounts
  step "copies: programs end, and everything is there" work_ends_well
  step "copies: data of all kinds is right" data_is_right
}

upgrade servers oss.1 oss.2 mds
if [[ $old != "$new" ]]; then
  step "the way back" going_back
fi
if have ldb; then
  step "older stores are taken" older_stores
  step "nacre doctor leaves later ones alone" later_stores
else
  note "no ldb (rocksdb-tools): without stores of other versions"
fi
if [[ $old != "$new" ]]; then
  upgrade mds-first mds oss.1 oss.2
  upgrade_copies
elif ((full == 1)); then
  upgrade_copies
fi
sed 's/^/  --  /' "$work/figures"
