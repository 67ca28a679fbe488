#!/usr/bin/env bash
# kill -9 of the client daemon under programs that call no fsync: closed files have their bytes, a file that was being replaced has its old or
# its new ones, git repositories and databases are whole. N rounds of each (--rounds; 2 by default, 20 with --full).
# shellcheck source=lib.sh
source "$(dirname "$0")/lib.sh"
begin killed_client 300 3600 --own -- "$@"
((rounds > 0)) || rounds=$(choose 2 20)

client_dies() {
  "$loopback" kill "$cluster" client.1
  (($# == 0)) || wait "$@" || true # its mount is gone: it ends with an error
  "$loopback" start "$cluster" client.1
  wait_for 60 "the mount" mountpoint -q "$mount"
}

small_files() {
  python3 - "$here" <<'PYTHON'
import os, sys
for number in range(1100):
    with open(os.path.join(sys.argv[1], 'small-%d' % number), 'w') as file:
        file.write('%d\n' % number * (number % 700 + 1))
PYTHON
  sleep "$1"
  client_dies
  python3 - "$here" <<'PYTHON'
import os, sys
wrong = [number for number in range(1100)
         if open(os.path.join(sys.argv[1], 'small-%d' % number)).read() != '%d\n' % number * (number % 700 + 1)]
sys.exit('%d of 1100 files are wrong: %s' % (len(wrong), wrong[:5]) if wrong else 0)
PYTHON
  rm "$here"/small-*
}

# Saves one file again and again, as editors do: a version is its number in so many lines.
saver() {
  python3 - "$@" <<'PYTHON'
import os, sys, time
way, path, lines = sys.argv[1], sys.argv[2], int(sys.argv[3])
for number in range(1, 1 << 30):
    text = '%09d\n' % number * lines
    target = path + '.tmp' if way == 'rename' else path
    with open(target, 'w') as file:
        file.write(text)
    if way == 'rename':
        os.rename(target, path)
    time.sleep(0.005)
PYTHON
}

whole_version() {
  python3 - "$@" <<'PYTHON'
import sys
text = open(sys.argv[1]).read().split('\n')
if len(text) != int(sys.argv[2]) + 1 or len(set(text[:-1])) != 1:
    sys.exit('%s is no version of it: %d lines, %d different' % (sys.argv[1], len(text) - 1, len(set(text[:-1]))))
PYTHON
}

# WAY LINES: under the inline limit or above it. A rewrite above it is cut short where the daemon is killed before the close, as the program's
# own end would cut it: only the smaller one is looked at.
saves() {
  local file="$here/saved-$1-$2"
  in_background saver "$1" "$file" "$2"
  local writer=$!
  wait_for 60 "the first version" whole_version "$file" "$2"
  sleep "0.$((RANDOM % 9 + 1))"
  client_dies "$writer"
  whole_version "$file" "$2"
}

edits() {
  seq 500 >"$here/edited"
  sync "$here/edited"
  in_background bash -c 'while sed -i "s/^\([0-9]*\).*/\1 $RANDOM/" "$1"; do :; done' _ "$here/edited"
  local editor=$!
  sleep "1.$((RANDOM % 9))"
  client_dies "$editor"
  (($(wc -l <"$here/edited") == 500))
}

commits() {
  local repository="$here/repository"
  git init -q "$repository"
  git -C "$repository" config user.email nobody@localhost
  git -C "$repository" config user.name nobody
  in_background bash -c 'for n in $(seq 100000); do echo "$n" >"$1/file" && git -C "$1" add file && git -C "$1" commit -qm "$n" || exit; done' _ "$repository"
  local committer=$!
  wait_for 60 "a commit" git -C "$repository" rev-parse -q --verify HEAD~3
  sleep "0.$((RANDOM % 9 + 1))"
  client_dies "$committer"
  rm -f "$repository"/.git/*.lock "$repository"/.git/refs/heads/*.lock
  git -C "$repository" fsck --full --strict
  git -C "$repository" rev-parse -q --verify HEAD~3
  git -C "$repository" status --short
  rm -r "$repository"
}

inserter() {
  python3 - "$@" <<'PYTHON'
import sqlite3, sys
base = sqlite3.connect(sys.argv[1])
base.execute('create table rows(number integer)')
with open(sys.argv[2], 'w', buffering=1) as acknowledged:
    for number in range(1 << 30):
        base.execute('insert into rows values(?)', (number,))
        base.commit()
        acknowledged.write('%d\n' % number)
PYTHON
}

database() {
  in_background inserter "$here/database" "$work/rows"
  local writer=$!
  wait_for 60 "the first rows" grep -q 20 "$work/rows"
  client_dies "$writer"
  python3 - "$here/database" "$(wc -l <"$work/rows")" <<'PYTHON'
import sqlite3, sys
base = sqlite3.connect(sys.argv[1])
assert base.execute('pragma integrity_check').fetchone() == ('ok',)
rows = base.execute('select count(*) from rows').fetchone()[0]
assert rows >= int(sys.argv[2]), '%d rows of %s' % (rows, sys.argv[2])
PYTHON
  rm -f "$here/database" "$here/database-journal" "$work/rows"
}

for round in $(seq "$rounds"); do
  step "round $round: 1,100 small files, killed at once" small_files 0
  step "round $round: 1,100 small files, killed a second later" small_files 1
  step "round $round: small files saved by rename" saves rename 100
  step "round $round: large files saved by rename" saves rename 20000
  step "round $round: small files rewritten" saves rewrite 100
  step "round $round: sed -i" edits
  if have git; then step "round $round: git commits" commits; else note "no git"; fi
  step "round $round: an SQLite database" database
done
