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
# The MDS is asked by the path's text: nothing is looked up through a mount, and no lease changes hands for it.
shows_leases() {
  mkdir "$here/leased"
  echo bytes >"$here/leased/file"
  holds() {
    "$bin/nacre" status --directory "$here/leased" --json | python3 -c '
import json, sys
shown = json.load(sys.stdin)
assert shown["path"].endswith("/leased") and not shown["awaited"], shown
sys.exit(0 if sys.argv[1] in [one["mode"] for one in shown["held"] if one["name"] == ""] else 1)' "$1"
  }
  wait_for 20 "a lease for writing" eval 'echo more >"$here/leased/file$RANDOM" && holds write'
  ls -l "$other/leased" >/dev/null
  holds read
  "$bin/nacre" status --directory "$here/leased" | grep -q 'READ of the directory: '
  fails "$bin/nacre" status --directory "$here/none"
  refuses_with 'lies on no Nacre mount' "$bin/nacre" status --directory /proc
}
[[ -z ${second_mount:-} ]] || step "nacre status --directory shows who holds what" shows_leases
step "races between the mounts: appends, locks, exclusive creates, renames" \
  "$programs/mount_races.py" "$here" "$other" --turns "$(choose 100 2000)"
