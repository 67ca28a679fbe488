#!/usr/bin/env bash
# The POSIX suite of tests/system/posix, on the mount.
# shellcheck source=lib.sh
source "$(dirname "$0")/lib.sh"
begin posix 300 600 -- "$@"
[[ -x $bin/posix_suite ]] || skip "no build/bin/posix_suite: build first"

step "POSIX: every assertion that holds on ext4 holds here" "$bin/posix_suite" "$here"
tail -n 1 "$work/step.log"
