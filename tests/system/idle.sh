#!/usr/bin/env bash
# An idle `nacre local` with four OSTs: less than 300 MiB resident, less than 0.5 % of a core; and it stays bounded after work.
# shellcheck source=lib.sh
source "$(dirname "$0")/lib.sh"
begin idle 180 600 --local 4 -- "$@"

resident_mib() {
  local pid kib=0
  for pid in $(cluster_pids); do ((kib += $(awk '/^VmRSS/ { print $2 }' "/proc/$pid/status"))); done
  echo $((kib / 1024))
}

# Time used so far, in hundredths of a second.
ticks() {
  local pid total=0
  for pid in $(cluster_pids); do ((total += $(awk '{ print $14 + $15 }' "/proc/$pid/stat"))); done
  echo "$total"
}

check_resident() {
  local mib
  mib=$(resident_mib)
  echo "$mib MiB resident" | tee -a "$work/figures"
  ((mib > 0 && mib < $1)) || { echo "that is not between 0 and $1"; return 1; }
}

# The least of three measurements at most: a busy machine makes every wake-up dearer, and what polls polls in all.
check_idle_cpu() {
  local seconds before used attempt
  seconds=$(choose 10 60)
  for attempt in 1 2 3; do
    before=$(ticks)
    sleep "$seconds" # what is measured: doing nothing
    used=$(($(ticks) - before))
    echo "$used hundredths of a second in $seconds s" | tee -a "$work/figures"
    ((used * 2 > seconds)) || return 0
  done
  echo "that is more than 0.5 % of a core, $attempt times"
  return 1
}

work_a_little() {
  "$programs/large_file.py" "$here/large" "$(choose 128 1024)"
  mkdir "$here/names"
  "$programs/many_entries.py" "$here/names/dir" "$(choose 5000 100000)"
}

step "idle: less than 300 MiB resident" check_resident 300
step "idle: less than 0.5 % of a core" check_idle_cpu
step "files written, read, made and removed" work_a_little
step "idle again: less than 0.5 % of a core" check_idle_cpu
note "$(tr '\n' ';' <"$work/figures") after work: $(resident_mib) MiB resident"
