#!/usr/bin/env bash
# Users' tools on a mount: git, a build, tar, rsync, SQLite, PostgreSQL, fio with verification, mmap. (Acceptance 2.)
# shellcheck source=lib.sh
source "$(dirname "$0")/lib.sh"

clone_and_check() {
  git -c safe.directory='*' clone --no-hardlinks --quiet "file://$repository" "$here/clone"
  git -C "$here/clone" fsck --full --strict
  [[ -z $(git -C "$here/clone" status --porcelain) ]]
  git -C "$here/clone" gc --quiet
  git -C "$here/clone" fsck --full
}

build_inside() {
  cmake -S "$here/clone" -B "$here/build" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo
  if ((full == 1)); then
    cmake --build "$here/build" --parallel 2
    ctest --test-dir "$here/build" --output-on-failure -R common
  else
    cmake --build "$here/build" --parallel 2 --target metadata_ops
    mkdir "$here/build/names"
    "$here/build/bin/metadata_ops" create 100 "$here/build/names/0" "$here/build/names/1"
  fi
}

tar_and_compare() {
  mkdir "$here/include"
  tar -C "$1" -cf - . | tar -C "$here/include" -xf -
  diff -r --no-dereference "$1" "$here/include"
}

rsync_twice() {
  rsync -a --checksum "$1/" "$here/rsync/"
  local moved
  moved=$(rsync -a --checksum --itemize-changes "$1/" "$here/rsync/")
  [[ -z $moved ]] || { echo "the second rsync moved: $moved"; return 1; }
}

fio_verify() {
  fio --name=verify --directory="$here" --rw=randwrite --bsrange=512-256k --bs_unaligned=1 --size="$1" --numjobs=2 --ioengine=psync \
    --fallocate=none --verify=crc32c --verify_state_save=0 --verify_fatal=1 --do_verify=1 --fsync=200 --randrepeat=0
  rm "$here"/verify.*
}

as_postgres() { setpriv --reuid=postgres --regid=postgres --clear-groups "$@"; }

postgres_bench() {
  local programs_dir=$1 data=$here/postgres socket=$work/socket result=0
  mkdir "$data" "$socket"
  chown postgres:postgres "$data" "$socket"
  chmod 711 "$work"
  cd "$socket"
  as_postgres "$programs_dir/initdb" --pgdata="$data" --auth=trust --data-checksums
  as_postgres "$programs_dir/pg_ctl" --pgdata="$data" --wait --log="$socket/log" \
    -o "-c listen_addresses='' -c unix_socket_directories='$socket' -c fsync=on -c shared_buffers=32MB" start || { cat "$socket/log"; return 1; }
  { as_postgres createdb --host="$socket" bench &&
    as_postgres "$programs_dir/pgbench" --host="$socket" --initialize --scale="$(choose 1 10)" bench &&
    as_postgres "$programs_dir/pgbench" --host="$socket" --client=4 --jobs=2 --time="$(choose 3 60)" bench &&
    as_postgres psql --host="$socket" -c 'checkpoint' bench; } || result=1
  as_postgres "$programs_dir/pg_ctl" --pgdata="$data" --wait --mode=fast stop || result=1
  as_postgres "$programs_dir/pg_checksums" --pgdata="$data" --check || result=1
  return "$result"
}

begin tools 240 3600 -- "$@"
for tool in git cmake ninja rsync sqlite3 fio python3; do
  have "$tool" || skip "no $tool here; deploy/install-deps brings it"
done
includes=$(choose /usr/include/linux /usr/include)

step "git clone, fsck, gc" clone_and_check
step "a C++ build inside the mount, and its program run" build_inside
step "tar of $includes in, diff -r out" tar_and_compare "$includes"
step "rsync -a --checksum twice, the second moves nothing" rsync_twice "$includes"
step "SQLite in WAL mode with concurrent writers" "$programs/sqlite_wal.py" "$here/sqlite" --writers 4 --rows "$(choose 200 2000)"
step "mmap: shared, private, resized, by two processes" "$programs/mmap_program.py" "$here/mapped"
step "fio random writes of two jobs, verified" fio_verify "$(choose 24m 512m)"
postgres=$({ find /usr/lib/postgresql -name initdb 2>/dev/null || true; } | sort -V | tail -n 1)
if [[ -n $postgres ]]; then
  step "PostgreSQL: initdb, pgbench with fsync=on, checksums" postgres_bench "$(dirname "$postgres")"
else
  note "no PostgreSQL on this machine: left out"
fi
