#!/usr/bin/env bash
# Our plugin of NIXL (compat/nixl), which is built where NIXL's headers are: a program that calls it as NIXL's agent does works on files of a
# mount, from host memory and the memory of a made-up GPU, or of the machine's own (NACRE_TEST_CUDA=libcuda.so.1).
# shellcheck source=lib.sh
source "$(dirname "$0")/lib.sh"
begin nixl 300 300 --own -- "$@"
plugin=$repository/build/compat/nixl/libplugin_NACRE.so
[[ -e $plugin ]] || skip "no libplugin_NACRE.so: it is built where NIXL's headers are (docs/nixl.md)"
export NACRE_CUDA_LIBRARY=${NACRE_TEST_CUDA:-$bin/libnacre-fake-cuda.so}
[[ $NACRE_CUDA_LIBRARY != /* || -e $NACRE_CUDA_LIBRARY ]] || skip "no build/bin/libnacre-fake-cuda.so"
mkdir "$work/elsewhere"

# NIXL opens it beside libraries of its own, and with whatever Abseil they bring.
shows_only_its_own() {
  local shown
  shown=$(nm -D --defined-only "$plugin" | awk '{ print $3 }' | sort | tr '\n' ' ')
  [[ $shown == "nixl_plugin_fini nixl_plugin_init " ]] || { echo "symbols: $shown"; return 1; }
  fails grep -i -e absl -e nixl <(readelf -d "$plugin" | grep NEEDED)
}

calls() {
  "$bin/nacre-nixl-calls" "$plugin" "$here" "$work/elsewhere" >"$work/said" 2>"$work/words" || { cat "$work/words"; return 1; }
  grep -q '^done$' "$work/said"
}

tells_why() {
  cat "$work/words"
  grep -q "elsewhere: .*Nacre" "$work/words"
  grep -q 'bytes: the file ends there' "$work/words"
  grep -q 'VRAM was named\|DRAM was named' "$work/words"
}

have nm && have readelf && step "the plugin shows nothing but its two functions, and needs no library of NIXL's" shows_only_its_own
step "segments and transfers" calls
step "what is refused is said in words" tells_why
