#!/usr/bin/env bash
# The directories of `nacre local`: closed to other users, made only for a new filesystem, refused in words when a disk is missing, and gone
# again after a start that failed.
# shellcheck source=lib.sh
source "$(dirname "$0")/lib.sh"
begin targets 120 120 --bare -- "$@"

dir=$work/local point=$work/point
local_dir=$dir # for the end of the test: whatever runs there is stopped

start() { "$bin/nacre" local --dir "$dir" --mount "$point" --osts "$1" --daemon; }
stop() { "$bin/nacre" stop --dir "$dir"; }

secrets_stay_secret() {
  local open
  echo TOPSECRET >"$point/password"
  chmod 600 "$point/password"
  sync "$point/password"
  chmod 755 "$work" "$dir"
  open=$(find "$dir/mdt" "$dir"/ost.* -perm /077)
  [[ -z $open ]] || { echo "others can reach: $open"; return 1; }
  if setpriv --reuid=nobody --regid=nogroup --clear-groups grep -rsa TOPSECRET "$dir"; then return 1; fi
  grep -qsa TOPSECRET "$dir"/mdt/*.log # it would have been found
}

a_failed_start_leaves_nothing() {
  refuses_with 'the disk of' "$bin/nacre" local --dir "$work/new/er" --mount "$work/new-point" --osts 2 --ost-size 900T
  refuses_with 'already mounted there' "$bin/nacre" local --dir "$work/new/er" --mount "$point" --osts 1 --ost-size 200M --daemon
  [[ ! -e $work/new && ! -e $work/new-point ]]
}

a_missing_ost_is_refused() {
  mv "$dir/ost.1" "$work/away"
  refuses_with "there is none in $dir/ost.1: is its disk mounted?" start 3
  mkdir "$dir/ost.1"
  refuses_with "there is none in $dir/ost.1: is its disk mounted?" start 3
  [[ -z $(ls -A "$dir/ost.1") ]]
  rmdir "$dir/ost.1"
  mv "$work/away" "$dir/ost.1"
}

a_missing_mdt_is_refused() {
  mv "$dir/mdt" "$work/away"
  refuses_with "is its disk mounted?" start 3
  [[ ! -e $dir/mdt ]]
  mv "$work/away" "$dir/mdt"
}

grows() {
  start 4
  [[ $(cat "$point/password") == TOPSECRET ]]
  "$bin/nacre" status --dir "$dir" | grep -q 'OST 3 *up'
}

umask 000 # as generous as can be
step "a new filesystem" start 3
step "other users find nothing in the MDT and the OSTs" secrets_stay_secret
step "a start that fails leaves no directories" a_failed_start_leaves_nothing
step "stops" stop
step "a missing or empty OST is refused, not made anew" a_missing_ost_is_refused
step "a missing MDT is refused, not made anew" a_missing_mdt_is_refused
step "an OST more than before is made" grows
step "stops" stop
