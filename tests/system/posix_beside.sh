#!/usr/bin/env bash
# The POSIX suite on a mount beside another one: under leases of directories instead of the filesystem's.
# shellcheck source=lib.sh
source "$(dirname "$0")/lib.sh"
begin posix_beside 300 600 --mounts 2 -- "$@"
[[ -x $bin/posix_suite ]] || skip "no build/bin/posix_suite: build first"

step "POSIX beside a second mount: every assertion that holds on ext4 holds here" "$bin/posix_suite" "$here"
tail -n 1 "$work/step.log"
