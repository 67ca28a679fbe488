#!/bin/sh
# Compiles through ccache: SOURCES/cmake/ccache.sh COMPILER ARGUMENT…
#
# ccache reads all of a precompiled header, 140 MB, for each file that includes it, found in the cache or not: longer than most files take
# to be compiled. So a checksum lies beside each one, which it reads in place of that (CCACHE_PCH_EXTSUM).
export CCACHE_BASEDIR="${0%/cmake/*}" CCACHE_NOHASHDIR=1 CCACHE_PCH_EXTSUM=1
export CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
ccache "$@" || exit

output='' before=''
for word; do
  [ "$before" = -o ] && output=$word
  before=$word
done
case $output in
  *.gch | *.pch) sha256sum <"$output" >"$output.sum" ;;
esac
