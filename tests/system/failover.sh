#!/usr/bin/env bash
# Three MDSes with a copy of the MDT each, an etcd of three members, and programs at work: MDSes are killed, stopped and frozen by turns. The work goes
# on, nothing that was acknowledged is lost, and all copies are the same in the end. Times are printed; only a standstill of 30 s is a failure.
# --rounds N, or N alone: of each (short: 1, full: 10).
# shellcheck source=lib.sh
source "$(dirname "$0")/lib.sh"
[[ ! ${1:-} =~ ^[0-9]+$ ]] || set -- --full --rounds "$@"
begin failover 300 7200 --own --bare -- "$@"
((rounds > 0)) || rounds=$(choose 1 10)
need_etcd

members=3
hang=30 # seconds
cluster=$work/cluster mount=$work/mnt.1 second_mount=$work/mnt.2
export NACRE_OST_SIZE=$((1 << 30))
bring_up "$work/mnt" --oss 1 --osts 2 --mounts 2 --mds "$members" --etcd 3

address_of() { sed -nE 's/^listen = \["([^"]*)".*/\1/p' "$cluster/etc/$1.toml"; }
status_json() { timeout 20 "$bin/nacre" status --mds "$(all_mds)" --json || true; }
pid_of() { cat "$cluster/run/$1.pid"; }

primary() { # the name of the part
  local name
  name=$(status_json | python3 -c 'import json, sys; print(json.load(sys.stdin)["copies"]["primary"])') || return 1
  [[ $name == mds.* ]] && echo "$name"
}
await_primary() { wait_for "$hang" "a primary" primary && primary; }
follower() { # one of them
  local first i
  first=$(primary)
  for i in $(seq "$members"); do [[ mds.$i == "$first" ]] || { echo "mds.$i"; return; }; done
}

in_sync() {
  status_json | python3 -c '
import json, sys
members = json.load(sys.stdin)["copies"]["members"]
sys.exit(0 if len(members) == int(sys.argv[1]) and all(m["in_sync"] for m in members) else 1)' "$members"
}
await_sync() { wait_for 90 "all copies in sync" in_sync; }

etcd_leader() {
  local part port
  for part in etcd.1 etcd.2 etcd.3; do
    port=$(etcd_port "$part")
    ETCDCTL_API=3 timeout 5 etcdctl --endpoints "127.0.0.1:$port" endpoint status -w json 2>/dev/null | python3 -c '
import json, sys
status = json.load(sys.stdin)[0]["Status"]
sys.exit(0 if status["leader"] == status["header"]["member_id"] else 1)' 2>/dev/null && echo "$part" && return 0
  done
  return 1
}

# How many requests the members of etcd have been sent.
asked_of_etcd() {
  local ports=() part
  for part in etcd.1 etcd.2 etcd.3; do ports+=("$(etcd_port "$part")"); done
  python3 - "${ports[@]}" <<'PYTHON'
import re, sys, urllib.request
total = 0.0
for port in sys.argv[1:]:
    page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode()
    total += sum(float(n) for n in re.findall(r"^grpc_server_msg_received_total\{.*\} (\S+)$", page, re.MULTILINE))
print(round(total))
PYTHON
}
# Leases and beacons, which go by time, go on in an idle cluster as well.
operations_ask_etcd_nothing() {
  local before begin asked took
  before=$(asked_of_etcd) begin=$(now)
  mkdir "$mount/many"
  "$bin/metadata_ops" create 3000 "$mount/many/1" && "$bin/metadata_ops" unlink 3000 "$mount/many/1"
  sync "$mount/many"
  asked=$(($(asked_of_etcd) - before)) took=$(python3 -c "print($(now) - $begin)")
  echo "  6,000 operations in $took s: etcd was asked $asked times" >>"$work/figures"
  before=$(asked_of_etcd)
  sleep "$took"
  local idle=$(($(asked_of_etcd) - before))
  echo "  nothing to do for as long: $idle times" >>"$work/figures"
  ((asked <= 2 * idle + 20)) || { echo "etcd was asked $asked times during 6,000 operations, and $idle times in as much time without"; return 1; }
}

# back_in_sync WHAT…: starts these parts, and everything is as before.
back_in_sync() {
  local part begin
  for part in "$@"; do "$loopback" start "$cluster" "$part"; done
  begin=$(now)
  await_sync
  echo "  $*: in sync after $(python3 -c "print(round(1000 * ($(now) - $begin)))") ms" >>"$work/figures"
}

end_now() { # PART…: kill -9
  local part pids=()
  for part in "$@"; do pids+=("$(pid_of "$part")"); done
  kill -KILL "${pids[@]}"
  wait_for 10 "the end of $*" no_process "${pids[@]}"
}
no_process() { ! kill -0 "$@" 2>/dev/null; }

start_work() {
  mkdir "$mount/records" "$mount/acked" "$second_mount/names"
  in_background "$programs/steady_work.py" records "$mount/records" "$work/records.log"
  echo $! >"$work/workers"
  in_background "$programs/steady_work.py" names "$second_mount/names" "$work/names.log"
  echo $! >>"$work/workers"
  in_background "$programs/acked_writes.py" write "$mount/acked" "$work/acked.log"
  echo $! >>"$work/workers"
  in_background "$programs/steady_work.py" watch "$second_mount/records" "$work/records.log"
  echo $! >>"$work/workers"
  "$programs/steady_work.py" since 0 30 "$work/records.log" "$work/names.log"
}

kill_primary() {
  local victim begin
  victim=$(await_primary)
  end_now "$victim"
  begin=$(now)
  work_goes_on "$begin" "kill -9 of the primary"
  back_in_sync "$victim"
}

stop_primary() {
  local victim begin
  victim=$(await_primary)
  begin=$(now)
  "$loopback" stop "$cluster" "$victim"
  work_goes_on "$(now)" "SIGTERM of the primary, after its end"
  echo "  the longest wait was $("$programs/steady_work.py" longest "$begin" "$work/records.log" "$work/names.log") ms" >>"$work/figures"
  back_in_sync "$victim"
}

kill_follower() {
  local victim begin
  await_primary
  victim=$(follower)
  end_now "$victim"
  begin=$(now)
  work_goes_on "$begin" "kill -9 of a follower"
  back_in_sync "$victim"
}

# It may answer with a refusal or not at all, but not as one that serves.
answers_as_follower() {
  local said
  said=$(timeout 10 "$bin/nacre" status --mds "$(address_of "$1")" 2>&1) && { echo "$1 serves: $said" >"$work/serves"; return 0; }
  grep -q "is not the primary" <<<"$said"
}

# A primary that sleeps for longer than its promises last believes, when it wakes, that it still is one.
freeze_primary() {
  local victim pid begin
  victim=$(await_primary)
  pid=$(pid_of "$victim")
  kill -STOP "$pid"
  begin=$(now)
  work_goes_on "$begin" "a frozen primary" || { kill -CONT "$pid"; return 1; }
  sleep "$(python3 -c "print(max(0, 10 - ($(now) - $begin)))")"
  [[ $(await_primary) != "$victim" ]] || { kill -CONT "$pid"; echo "$victim is the primary although it does not run"; return 1; }
  rm -f "$work/serves"
  kill -CONT "$pid"
  wait_for "$hang" "an answer of $victim" answers_as_follower "$victim"
  [[ ! -e $work/serves ]] || { cat "$work/serves"; return 1; }
  await_sync
  [[ $(primary) != "$victim" ]] || { echo "$victim is primary again: not meant here"; return 1; }
  kill -0 "$pid" || { echo "$victim has another process"; return 1; }
  tail -n 200 "$cluster/log/$victim.log" | grep -q "beginning anew" || { echo "$victim has not begun anew"; return 1; }
}

kill_primary_and_judge() {
  local victim leader begin
  victim=$(await_primary)
  leader=$(etcd_leader)
  end_now "$leader" "$victim"
  begin=$(now)
  work_goes_on "$begin" "kill -9 of the primary and of etcd's leader"
  back_in_sync "$leader" "$victim"
}

kill_all() {
  local begin
  end_now mds.1 mds.2 mds.3
  begin=$(now)
  back_in_sync mds.1 mds.2 mds.3
  work_goes_on "$begin" "kill -9 of all MDSes, which are started again"
}

all_right() {
  local pid
  while read -r pid; do kill -0 "$pid" || { echo "the work has ended: something was wrong"; return 1; }; done <"$work/workers"
  while read -r pid; do kill_tree "$pid" || true; done <"$work/workers"
  sleep 1
  "$programs/steady_work.py" check-records "$second_mount/records" "$work/records.log"
  "$programs/steady_work.py" check-names "$mount/names" "$work/names.log"
  "$programs/acked_writes.py" check "$second_mount/acked" "$work/acked.log"
}

# Everything ends at once, so that none of them writes what the others do not hear of; nothing else is going on.
copies_are_equal() {
  local i part pids=() whole=$work/whole
  await_sync
  for part in client.1 client.2 oss.1; do "$loopback" stop "$cluster" "$part"; done
  sleep 2
  for i in $(seq "$members"); do pids+=("$(pid_of "mds.$i")"); done
  kill -STOP "${pids[@]}"
  kill -KILL "${pids[@]}"
  wait_for 10 "the end of the MDSes" no_process "${pids[@]}"
  "$bin/nacre" mdt compare "$cluster"/mdt.*
  for i in $(seq "$members"); do "$bin/nacre" doctor "$cluster/mdt.$i"; done
  mkdir "$whole"
  ln -s "$cluster/mdt.1" "$cluster"/ost.* "$whole"
  "$bin/nacre" doctor "$whole" --data
}

step "all copies are in sync" await_sync
step "operations ask etcd nothing" operations_ask_etcd_nothing
step "programs work on two mounts" start_work
for round in $(seq "$rounds"); do
  step "the primary is killed ($round)" kill_primary
  step "the next primary is killed ($round)" kill_primary
  step "the primary is frozen and wakes ($round)" freeze_primary
  step "a follower is killed ($round)" kill_follower
  step "the primary is stopped ($round)" stop_primary
  step "the primary and etcd's leader are killed ($round)" kill_primary_and_judge
  step "all MDSes are killed ($round)" kill_all
done
step "nothing is lost" all_right
step "all copies are the same, and clean" copies_are_equal
sed 's/^/  --  /' "$work/figures"
