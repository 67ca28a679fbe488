#!/usr/bin/env bash
# Two mounts of one filesystem at once: random operations from both against one model, then races between them. No stale answer, ever.
# (Acceptance 7.) With a MOUNTPOINT, both "mounts" are that one: a check of the test itself.
# shellcheck source=lib.sh
source "$(dirname "$0")/lib.sh"
begin two_mounts 240 3600 --mounts 2 -- "$@"

other=${second_mount:-$mount}/$(basename "$here")
for seed in $(seq "${seed:-1}" $((${seed:-1} + $(choose 0 9)))); do
  step "random operations from both against one model, seed $seed" \
    "$programs/two_mounts.py" "$here" "$other" --seed "$seed" --operations "$(choose 600 20000)" --quiet-every "$(choose 150 500)" \
    --alone-every "$(choose 150 100)"
done
step "races between the mounts: appends, locks, exclusive creates, renames" \
  "$programs/mount_races.py" "$here" "$other" --turns "$(choose 100 2000)"
