#!/usr/bin/env bash
# The operator's work with several MDSes: a copy that is lost or of another filesystem, one MDS made of several and several of one, a backup; and
# what is refused. (failover.sh kills them.)
# shellcheck source=lib.sh
source "$(dirname "$0")/lib.sh"
begin copies 240 240 --own --bare -- "$@"
need_etcd

cluster=$work/cluster mount=$work/mnt
export NACRE_OST_SIZE=$((1 << 30))
bring_up "$mount" --oss 1 --osts 1 --mds 2 --etcd 1
mdses=$(all_mds)

status() { timeout 20 "$bin/nacre" status --mds "$mdses" "$@"; }
in_sync() { status | grep -q "2 of 2 copies in sync"; }
ost_up() { status --json | grep -q '"up": true'; }
epoch() { status --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["copies"]["epoch"])'; }
stop_all_mds() {
  "$loopback" stop "$cluster" mds.2
  "$loopback" stop "$cluster" mds.1
}
# without_copies PART: its configuration without [copies], as that of a filesystem of one MDS.
without_copies() {
  sed '/^\[copies\]/,$d' "$cluster/etc/$1.toml" >"$work/alone.toml"
  echo "$work/alone.toml"
}

make_files() {
  mkdir "$mount/dir"
  for i in $(seq 20); do echo "file $i" >"$mount/dir/$i"; done
  head -c 4M /dev/urandom >"$mount/large"
  sync "$mount/large"
  find "$mount" -type f -exec md5sum {} + | sort >"$work/sums"
}
files_are_there() {
  echo 3 >/proc/sys/vm/drop_caches
  find "$mount" -type f -exec md5sum {} + | sort | diff - "$work/sums"
}
still_works() {
  wait_for 60 "the OST is up" ost_up
  timeout 60 cat "$mount/dir/1" >/dev/null
  files_are_there
  head -c 1M /dev/urandom | timeout 60 dd of="$mount/again" conv=fsync status=none
  rm "$mount/again"
}

a_copy_is_not_served_alone() {
  "$loopback" stop "$cluster" mds.2
  refuses_with "is one of several copies" "$bin/nacre-mds" --config "$(without_copies mds.2)"
  refuses_with "would differ from the others after a repair" "$bin/nacre" doctor "$cluster/mdt.2" --repair
  wait_for 30 "the problem" refuses_with "is not in sync" status
  "$bin/nacre" doctor "$cluster/mdt.2"
  "$loopback" start "$cluster" mds.2
  wait_for 60 "both copies in sync" in_sync
}

a_lost_copy_is_filled() {
  "$loopback" kill "$cluster" mds.2
  rm -r "$cluster/mdt.2"
  refuses_with "there is no MDT in" "$bin/nacre-mds" --config "$cluster/etc/mds.2.toml"
  "$bin/nacre-mds" --config "$cluster/etc/mds.2.toml" --format --copy
  "$bin/nacre" doctor "$cluster/mdt.2" | grep "a blank copy that no other MDS has filled yet"
  "$loopback" start "$cluster" mds.2
  wait_for 60 "both copies in sync" in_sync
}

# Formatted without --copy: it has a filesystem of its own, which is no copy of this one.
another_filesystem_is_refused() {
  "$loopback" stop "$cluster" mds.2
  mv "$cluster/mdt.2" "$work/mdt.2"
  "$bin/nacre-mds" --config "$cluster/etc/mds.2.toml" --format
  refuses_with "begin with an empty directory" timeout 30 "$bin/nacre-mds" --config "$cluster/etc/mds.2.toml"
  rm -r "$cluster/mdt.2"
  mv "$work/mdt.2" "$cluster/mdt.2"
  "$loopback" start "$cluster" mds.2
  wait_for 60 "both copies in sync" in_sync
}

bad_input_is_refused() {
  refuses_with "[copies] coordinator is empty" "$bin/nacre-mds" --config "$(without_copies mds.1)" --format --copy
  refuses_with "take the section [copies] out" "$bin/nacre-mds" --config "$cluster/etc/mds.1.toml" --alone
  refuses_with "[copies] name 'a/b'" "$bin/nacre-mds" --config "$cluster/etc/mds.1.toml" --copies-name a/b --check
  wait_for 30 "the follower knows the primary" refuses_with "is not the primary: the primary is at" "$bin/nacre" status --mds "$(follower_address)"
}
follower_address() {
  status --json | python3 -c '
import json, sys
copies = json.load(sys.stdin)["copies"]
print(next(m["address"] for m in copies["members"] if m["name"] != copies["primary"]))'
}

back_up() {
  "$bin/nacre" mdt backup "$work/backup" --mds "$mdses"
}

# serve_alone PART: at its address, without the others; by loopback, so that it ends with the rest.
serve_alone() {
  cp "$cluster/etc/$1.toml" "$work/$1.copies"
  cp "$(without_copies "$1")" "$cluster/etc/$1.toml"
  "$loopback" start "$cluster" "$1"
}

one_of_several() {
  stop_all_mds
  "$bin/nacre-mds" --config "$(without_copies mds.1)" --alone
  refuses_with "is no copy" "$bin/nacre-mds" --config "$work/alone.toml" --alone
  serve_alone mds.1
  still_works
  fails grep -q "copies in sync" <(status)
}

several_of_one() {
  ETCDCTL_API=3 etcdctl --endpoints "127.0.0.1:$(etcd_port etcd.1)" del --prefix /nacre/
  "$loopback" stop "$cluster" mds.1
  cp "$work/mds.1.copies" "$cluster/etc/mds.1.toml"
  rm -r "$cluster/mdt.2"
  "$bin/nacre-mds" --config "$cluster/etc/mds.2.toml" --format --copy
  "$loopback" start "$cluster" mds.1
  "$loopback" start "$cluster" mds.2
  wait_for 60 "both copies in sync" in_sync
  still_works
  (($(epoch) > 1000000)) || { echo "epoch $(epoch): not higher than that of the MDS that was alone"; return 1; }
}

# The OSSes have heard of higher epochs than the backup's; the mount loses its session.
restored_backup_is_obeyed() {
  stop_all_mds
  "$bin/nacre" mdt restore "$work/backup" "$cluster/mdt.3"
  sed -i "s|^directory = .*|directory = \"$cluster/mdt.3\"|" "$cluster/etc/mds.1.toml"
  serve_alone mds.1
  # A restore evicts every client: what was under way in the old session fails, and what follows does not.
  wait_for 60 "the mount has a new session" files_are_there
  still_works
}

step "files are made" make_files
step "both copies are in sync" wait_for 60 "both copies in sync" in_sync
step "a backup is made" back_up
step "bad input is refused" bad_input_is_refused
step "a copy is not served alone" a_copy_is_not_served_alone
step "a copy that was lost is filled" a_lost_copy_is_filled
step "an MDT of another filesystem is refused" another_filesystem_is_refused
step "one MDS of several" one_of_several
step "several MDSes of one" several_of_one
step "a restored backup is obeyed" restored_backup_is_obeyed
