#!/usr/bin/env bash
# Several mounts of one filesystem at once: random operations from all against one model, then races between two of them. A fourth mount, in a network
# of its own, is killed, frozen and cut off by turns while it holds leases. No stale answer, ever, and nobody waits for longer than leases last.
# (Acceptance 7.) With a MOUNTPOINT, all "mounts" are that one, and nothing is broken: a check of the test itself.
# shellcheck source=lib.sh
source "$(dirname "$0")/lib.sh"
begin two_mounts 600 7800 --mounts 0 -- "$@"

within() { # NETWORK COMMAND…
  local network=$1
  shift
  nsenter -t "$(holder "$network")" --net "$@"
}

# Two networks with a way between them: the cluster's, with three mounts, and that of the fourth mount.
networks() {
  hold_namespaces near --net
  hold_namespaces far --net
  ip link add way netns "$(holder near)" type veth peer name way netns "$(holder far)"
  local network
  for network in near far; do
    within "$network" ip link set lo up
    within "$network" ip address add "10.0.0.$([[ $network == near ]] && echo 1 || echo 2)/24" dev way
    within "$network" ip link set way up
  done
}

four_mounts() {
  within near "$loopback" up "$cluster" "$work/mnt" --oss 2 --osts 2 --mounts 4
  within near "$loopback" stop "$cluster" client.4
  within far "$loopback" start "$cluster" client.4
}

# The commands that get the fourth mount into trouble, and out of it: when it is back, it has changed something.
troubles() {
  local back client far
  back="timeout 60 sh -c 'until mkdir $work/mnt.4/back 2>/dev/null; do sleep 0.2; done' && sleep 1 && rmdir $work/mnt.4/back"
  client="\$(cat $cluster/run/client.4.pid)"
  far="nsenter -t $(holder far) --net"
  trouble=(
    --trouble "$far $loopback kill $cluster client.4" "$far $loopback start $cluster client.4 && $back"
    --trouble "kill -STOP $client" "kill -CONT $client && $back"
    --trouble "$far ip link set way down" "$far ip link set way up && $back"
  )
}

from_four() { "$programs/two_mounts.py" "${places[@]}" --seed 100 --quiet-every 400 --trouble-every 20 "$@" | tee "$work/figures"; }

trouble=()
if [[ -n $given ]]; then
  places=("$here" "$here")
else
  have nsenter && have ip || skip "no nsenter or ip: deploy/install-deps installs them (util-linux, iproute2)"
  export NACRE_ADDRESS=10.0.0.1 NACRE_MDS_KEYS='insecure = true' NACRE_OSS_KEYS='insecure = true'
  cluster=$work/cluster mount=$work/mnt.1
  step "two networks" networks
  step "a cluster with three mounts, and a fourth one in a network of its own" four_mounts
  place_here
  places=()
  for n in 1 2 3 4; do places+=("$work/mnt.$n/$(basename "$here")"); done
  troubles
fi

for seed in $(seq "${seed:-1}" $((${seed:-1} + $(choose 0 9)))); do
  step "random operations from two mounts against one model, seed $seed" \
    "$programs/two_mounts.py" "${places[@]:0:2}" --seed "$seed" --operations "$(choose 600 2000)" --quiet-every "$(choose 150 500)" \
    --alone-every "$(choose 150 500)"
done
if [[ -z $given ]]; then
  step "random operations from four, one of them in trouble" \
    from_four "$(choose --operations --seconds)" "$(choose 70 3600)" "${trouble[@]}"
  sed 's/^/  --  /' "$work/figures"
fi
# The MDS is asked by the path's text: nothing is looked up through a mount, and no lease changes hands for it.
shows_leases() {
  local one=$work/mnt.1/leased two=$work/mnt.2/leased
  mkdir "$one"
  echo bytes >"$one/file"
  leases() { within near "$bin/nacre" status --directory "$@"; }
  holds() {
    leases "$one" --json | python3 -c '
import json, sys
shown = json.load(sys.stdin)
assert shown["path"] == "/leased" and not shown["awaited"], shown
sys.exit(0 if sys.argv[1] in [held["mode"] for held in shown["held"] if held["name"] == ""] else 1)' "$1"
  }
  wait_for 20 "a lease for writing" eval "echo more >'$one/file'\$RANDOM && holds write"
  ls -l "$two" >/dev/null
  holds read
  leases "$one" | grep -q 'READ of the directory: '
  fails leases "$one/none"
  refuses_with 'lies on no Nacre mount' leases /proc
}
[[ -n $given ]] || step "nacre status --directory shows who holds what" shows_leases
step "races between two mounts: appends, locks, exclusive creates, renames" \
  "$programs/mount_races.py" "${places[@]:0:2}" --turns "$(choose 100 2000)"
