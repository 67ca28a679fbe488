#!/usr/bin/env bash
# libnacre as it is installed: programs that find it through pkg-config (C11) and CMake (C++) read a striped file of a mount into host and
# (fake) device memory, synchronously, asynchronously and in a batch; the examples do what their first line says; rights are the caller's.
# shellcheck source=lib.sh
source "$(dirname "$0")/lib.sh"
begin api 600 900 --own -- "$@"
have cc && have cmake && have pkg-config || skip "needs a compiler, cmake and pkg-config"
prefix=$work/prefix
chmod 755 "$work" # others run what is installed here

install_it() {
  cmake --install "$repository/build" --prefix "$prefix"
  fails grep -rn "$repository" "$prefix"/lib*/pkgconfig "$prefix"/lib*/cmake "$prefix/include"
}

shows_only_its_own() {
  local foreign
  foreign=$(nm -D --defined-only "$prefix"/lib*/libnacre.so.0 | grep -v " nacre_.*@@NACRE_0$" | grep -v " A NACRE_0$" || true)
  [[ -z $foreign ]] || { echo "other symbols: $foreign"; return 1; }
}

build_c() {
  local flags
  flags=$(PKG_CONFIG_PATH=$(echo "$prefix"/lib*/pkgconfig) pkg-config --cflags --libs nacre)
  # shellcheck disable=SC2086  # the flags are words
  cc -std=c11 -D_DEFAULT_SOURCE -Wall -Wextra -Werror "$programs/api/reads.c" -o "$work/reads_c" $flags -Wl,-rpath,"$(echo "$prefix"/lib*)" -ldl
}

build_cc() {
  cmake -S "$programs/api" -B "$work/reads" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_BUILD_RPATH="$(echo "$prefix"/lib*)"
  cmake --build "$work/reads"
  cmake -S "$repository/examples" -B "$work/examples" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_BUILD_RPATH="$(echo "$prefix"/lib*)"
  cmake --build "$work/examples"
}

example() { "$work/examples/nacre_example_$1" "${@:2}"; }

# reads PROGRAM FILE MEMORY EXPECTED…
reads() {
  local program=$1 file=$2 memory=$3 said
  shift 3
  said=$("$program" "$file" "$work/out" $memory)
  echo "$said"
  cmp "$file" "$work/out"
  for expected; do grep -q "$expected" <<<"$said"; done
}

too_old() {
  NACRE_FAKE_CUDA=driver=11000 fails "$work/reads_c" "$here/striped" "$work/out" --gpu 2>"$work/refused"
  grep -q 'Bad address.*driver is too old.*11.0' "$work/refused"
}

make_striped() {
  : >"$1"
  "$bin/nacre" setstripe -c 4 -S 64K "$1"
  head -c 7654321 /dev/urandom >>"$1"
}

# The library reads what was written through the mount a moment ago, and the other way round.
both_ways() {
  echo "written through the mount" >"$here/small"
  [[ $(example hello "$here/small" 2>/dev/null) == "written through the mount" ]]
  : >"$here/left"
  "$work/reads_c" --write "$here/left" 3000000 # ends without closing
  [[ $(tr -d x <"$here/left" | wc -c) == 0 && $(stat -c %s "$here/left") == 3000000 ]]
}

python_sum() { python3 -c 'import sys; print(sum(open(sys.argv[1], "rb").read()[int(sys.argv[2]):int(sys.argv[3])]))' "$@"; }

safetensors() {
  python3 - "$here/model" <<'END'
import json, os, struct, sys
header = json.dumps({"__metadata__": {"a": "b"}, "first": {"dtype": "F16", "shape": [1001, 3], "data_offsets": [0, 6006]},
                     "second": {"dtype": "U8", "shape": [3000000], "data_offsets": [6006, 3006006]}}).encode()
with open(sys.argv[1], "wb") as out:
    out.write(struct.pack("<Q", len(header)) + header + os.urandom(3006006))
open(sys.argv[1] + ".begin", "w").write(str(8 + len(header)))
END
  local begin said
  begin=$(cat "$here/model.begin")
  said=$(example load_safetensors "$here/model" $1)
  echo "$said"
  grep -qx "first F16 6006 bytes, sum $(python_sum "$here/model" "$begin" $((begin + 6006)))" <<<"$said"
  grep -qx "second U8 3000000 bytes, sum $(python_sum "$here/model" $((begin + 6006)) $((begin + 3006006)))" <<<"$said"
}

training() {
  local size
  size=$(stat -c %s "$here/striped")
  [[ $(example training_reader "$here/striped" 1000 64 $1) == "$((size / 1000)) samples, sum $(python_sum "$here/striped" 0 $((size / 1000 * 1000)))" ]]
}

kv_cache() {
  example kv_fetch make "$here/cache" 16384 500
  [[ $(example kv_fetch fetch "$here/cache" 16384 2000 $1) == "2000 blocks are what they should be" ]]
}

copies() {
  local mds
  mds=$(getfattr --only-values -n nacre.mds "$here")
  head -c 5000001 /dev/urandom >"$work/local"
  example copy_file "$mds" in "$work/local" "${here#"$mount"/}/copied"
  cmp "$work/local" "$here/copied"
  example copy_file "$mds" out "${here#"$mount"/}/copied" "$work/back"
  cmp "$work/local" "$work/back"
}

# A file that another one replaces while it is read: who has it open goes on with it, who opens the name gets the other.
replaced() {
  local reader
  head -c 3000001 /dev/urandom >"$work/old"
  head -c 3100001 /dev/urandom >"$work/new"
  cp "$work/old" "$here/replaced" && cp "$work/new" "$here/replacing"
  mkfifo "$work/go"
  "$work/reads/replaced" "$here/replaced" "$work/old" "$work/new" <"$work/go" >"$work/said" &
  reader=$!
  exec 7>"$work/go"
  wait_for 30 "the first read" grep -q reading "$work/said"
  mv "$here/replacing" "$here/replaced"
  echo >&7
  exec 7>&-
  wait $reader
  cat "$work/said"
}

# Files are opened as who calls.
rights() {
  echo "for all" >"$here/open" && chmod 644 "$here/open"
  echo "for root" >"$here/closed" && chmod 600 "$here/closed"
  [[ $(setpriv --reuid=65534 --regid=65534 --clear-groups "$work/examples/nacre_example_hello" "$here/open" 2>/dev/null) == "for all" ]]
  fails setpriv --reuid=65534 --regid=65534 --clear-groups "$work/examples/nacre_example_hello" "$here/closed" 2>"$work/refused"
  grep -qi 'permission\|denied\|may not' "$work/refused"
}

beside_nacre_local() {
  local_dir=$work/local.d
  mkdir "$work/local.mnt"
  "$bin/nacre" local --dir "$local_dir" --mount "$work/local.mnt" --osts 4 --daemon
  make_striped "$work/local.mnt/striped"
  reads "$work/reads_c" "$work/local.mnt/striped" "" 7654321
  fails "$work/reads_c" / "$work/out" 2>"$work/refused"
  grep -q 'not on a Nacre mount' "$work/refused"
  "$bin/nacre" stop --dir "$local_dir"
}

step "cmake --install into a prefix of its own" install_it
step "the library shows nothing but its functions" shows_only_its_own
step "a C11 program finds it through pkg-config" build_c
step "C++ programs and the examples find it through CMake" build_cc
step "a striped file" make_striped "$here/striped"
step "read from C into host memory" reads "$work/reads_c" "$here/striped" "" '7654321 bytes over shm, verified by 1'
step "read from C++ into host memory" reads "$work/reads/reads_cc" "$here/striped" "" '7654321 bytes over shm, verified by 1'
step "what the mount writes the library reads, and the other way round" both_ways
step "example: a safetensors file" safetensors ""
step "example: a training reader" training ""
step "example: a KV cache" kv_cache ""
step "example: copies without a mount" copies
step "a file that is replaced while it is read" replaced
export NACRE_CUDA_LIBRARY=$bin/libnacre-fake-cuda.so
if [[ -e $NACRE_CUDA_LIBRARY ]]; then
  by=2 # the GPU; the CPU where the build had no CUDA compiler and so has no kernels
  ! "$bin/nacre" gpu | grep -q 'verification: cpu (this Nacre was built without a CUDA compiler' || by=1
  step "read from C into device memory" reads "$work/reads_c" "$here/striped" --gpu "7654321 bytes over shm+gpu, verified by $by"
  step "read from C++ into device memory" reads "$work/reads/reads_cc" "$here/striped" --gpu "7654321 bytes over shm+gpu, verified by $by"
  step "a driver that is too old is named" too_old
  step "example: a safetensors file into device memory" safetensors --gpu
  step "example: a training reader into device memory" training --gpu
  step "example: a KV cache into device memory" kv_cache --gpu
else
  note "no build/bin/libnacre-fake-cuda.so: nothing into device memory"
fi
unset NACRE_CUDA_LIBRARY
step "others have their own rights" rights
step "beside nacre local, too" beside_nacre_local
