#!/usr/bin/env bash
# nacre setstripe and getstripe as Lustre's users know them: what is set is there, single values for scripts, whole trees, and a clear answer
# to options that cannot be had here.
# shellcheck source=lib.sh
source "$(dirname "$0")/lib.sh"
begin layouts 120 120 --local 4 -- "$@"

# is EXPECTED COMMAND…: what nacre prints.
is() {
  local expected=$1 output
  shift
  output=$("$bin/nacre" "$@")
  [[ $output == "$expected" ]] || { echo "nacre $*: '$output' instead of '$expected'"; return 1; }
}

# refuses TEXT COMMAND…: wrong usage, and the message says so.
refuses() {
  local text=$1 output status=0
  shift
  output=$("$bin/nacre" "$@" 2>&1) || status=$?
  ((status == 2)) && grep -qF -- "$text" <<<"$output" || { echo "nacre $*: exit status $status: $output"; return 1; }
}

single_values() {
  "$bin/nacre" setstripe -c 3 -S 128K "$here/three"
  is 3 getstripe -c "$here/three"
  is 131072 getstripe -S "$here/three"
  is '3 131072' getstripe -S -c "$here/three"
  [[ $("$bin/nacre" getstripe -i "$here/three") == "$("$bin/nacre" getstripe --json "$here/three" | grep -A1 '"osts"' | grep -oE '[0-9]+')" ]]
  mkdir "$here/mixed"
  "$bin/nacre" setstripe -E 1M -c 1 -S 64K -E -1 -c -1 "$here/mixed"
  is $'1 65536 -1\n-1 65536 -1' getstripe --stripe-count --stripe-size --stripe-index "$here/mixed"
}

whole_trees() {
  mkdir -p "$here/tree/below/deeper"
  "$bin/nacre" setstripe -c 2 -S 64K "$here/tree/two" "$here/tree/below/deeper/two"
  echo small >"$here/tree/below/small"
  ln -s "$here" "$here/tree/below/link"
  mkfifo "$here/tree/fifo"
  "$bin/nacre" getstripe -r "$here/tree" | grep "^$here" | sort >"$work/found"
  find "$here/tree" -type f -o -type d | sort | diff - "$work/found"
  (($("$bin/nacre" getstripe -r -c "$here/tree" "$here/tree/two" | wc -l) == 7))
  "$bin/nacre" getstripe -r --json "$here/tree" >"$work/json"
  (($(grep -c '"path"' "$work/json") == 6))
  if "$bin/nacre" getstripe -r "$here/tree" "$here/none" >"$work/some" 2>&1; then return 1; fi # the others are shown all the same
  grep -q "^$here/tree/below/small" "$work/some"
}

objects_alone() {
  dd if=/dev/zero of="$here/tree/two" bs=64K count=2 conv=notrunc,fsync status=none
  "$bin/nacre" getstripe -q "$here/tree/two" >"$work/objects"
  (($(grep -cE '^  ost [0-3] object [0-9a-f]+\.[01]$' "$work/objects") == 2))
  (($(grep -oE 'ost [0-3]' "$work/objects" | sort -u | wc -l) == 2))
  is "$here/tree" getstripe -q "$here/tree"
}

not_to_be_had() {
  refuses 'there are no OST pools here' setstripe -p fast -c 2 "$here/pooled"
  refuses 'there are no OST pools here' setstripe -c 2 --pool fast "$here/pooled"
  refuses 'OSTs cannot be named' setstripe -c 2 -i 1 "$here/pooled"
  refuses 'OSTs cannot be named' setstripe -o 1,2 "$here/pooled"
  refuses '-i needs a value' setstripe -c 2 "$here/pooled" -i
  refuses '-N 4: the number of copies must be 1 to 3' setstripe -c 2 --copies 4 "$here/pooled"
  refuses '-N two: the number of copies must be 1 to 3' setstripe -N two "$here/pooled"
  [[ ! -e $here/pooled ]]
  "$bin/nacre" setstripe -i -1 -c 2 "$here/any"
  is 2 getstripe -c "$here/any"
  refuses excludes getstripe -q -c "$here/any"
  refuses excludes getstripe --json -S "$here/any"
  refuses excludes getstripe --json -q "$here/any"
}

# A file's name is bytes. What programs read is JSON, in which a byte that is no UTF-8 is U+FFFD.
names_that_are_no_utf8() {
  local directory=$here/$'caf\xe9' file fid
  mkdir "$directory"
  for file in "$directory"/$'\xff' "$directory/behind"; do
    "$bin/nacre" setstripe -c -1 "$file"
    head -c 8M /dev/urandom >>"$file"
    fid=$("$bin/nacre" getstripe "$file" | awk '$1 == "fid" { print $2 }')
    [[ $mount$("$bin/nacre" path "$fid" --dir "$local_dir") == "$file" ]]
  done
  "$bin/nacre" getstripe -r --json "$directory" | python3 -m json.tool >/dev/null
  "$bin/nacre" status --json --directory "$directory" | python3 -m json.tool >/dev/null
  "$bin/nacre" ost remove 0 --lost --list --dry-run --dir "$local_dir" >"$work/listed"
  for file in "$directory"/$'\xff' "$directory/behind"; do grep -qaxF "${file#"$mount"}" "$work/listed" || { cat "$work/listed"; return 1; }; done
}

step "single values, for scripts" single_values
step "whole trees" whole_trees
step "objects alone" objects_alone
step "pools and chosen OSTs are refused in words" not_to_be_had
step "names that are no UTF-8" names_that_are_no_utf8
