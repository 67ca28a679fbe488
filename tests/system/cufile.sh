#!/usr/bin/env bash
# libcufile.so.0 of ours: a program that calls cuFile works on files of a mount, and on others, with LD_PRELOAD and by the library path; with the
# driver that needs no GPU, or with the machine's own (NACRE_TEST_CUDA=libcuda.so.1).
# shellcheck source=lib.sh
source "$(dirname "$0")/lib.sh"
begin cufile 300 300 --own -- "$@"
have python3 || skip "needs python3"
library=$repository/build/compat/cufile/libcufile.so.0
[[ -e $library ]] || library=$(dirname "$bin")/lib/nacre/libcufile.so.0
[[ -e $library ]] || skip "no libcufile.so.0: build first"
export NACRE_CUDA_LIBRARY=${NACRE_TEST_CUDA:-$bin/libnacre-fake-cuda.so}
[[ $NACRE_CUDA_LIBRARY != /* || -e $NACRE_CUDA_LIBRARY ]] || skip "no build/bin/libnacre-fake-cuda.so"
export NACRE_CUFILE_NVIDIA=none # what the machine has is not what is tested
export NACRE_FAKE_CUDA=room=1024 # as a GPU has it
mkdir "$work/elsewhere"

# One that is linked with NVIDIA's must take it: no versions, and nothing but cuFile's names.
shows_only_its_own() {
  local foreign
  foreign=$(nm -D --defined-only "$library" | grep -v " T cuFile[A-Za-z0-9_]*$" || true)
  [[ -z $foreign ]] || { echo "other symbols: $foreign"; return 1; }
  [[ $(readelf -d "$library" | grep -c 'SONAME.*\[libcufile.so.0\]') == 1 ]]
}

calls() {
  rm -rf "${here:?}"/* "$work/log"
  env "$1" NACRE_CUFILE_LOG="$work/log" python3 "$programs/cufile_calls.py" "$here" "$work/elsewhere"
}

log_tells() {
  cat "$work/log"
  grep -q "$here/rw: Nacre$" "$work/log"
  grep -Eq "$here/rw: bytes come over (shm|tcp|rdma)" "$work/log"
  grep -q "$work/elsewhere/foreign: not on a Nacre mount: pread and a copy$" "$work/log"
}

# With who counts the syncs, where there is a compiler.
preloaded=$library
if have cc; then
  cc -D_GNU_SOURCE -shared -fPIC -o "$work/counted_syncs.so" "$programs/counted_syncs.c" -ldl
  preloaded="$work/counted_syncs.so $library"
fi

have nm && have readelf && step "the library shows nothing but cuFile's functions, without versions" shows_only_its_own
step "a program with LD_PRELOAD" calls LD_PRELOAD="$preloaded"
step "NACRE_CUFILE_LOG says which way each file takes" log_tells
step "a program with LD_LIBRARY_PATH" calls LD_LIBRARY_PATH="$(dirname "$library"):$(dirname "$bin")/lib:${LD_LIBRARY_PATH:-}"
