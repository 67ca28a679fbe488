#!/usr/bin/env bash
# An idle `nacre local` with four OSTs: less than 300 MiB resident, fewer than 40 wake-ups a second, and no thread that spins; the same
# after work. Wake-ups are what a test can count: some 20 a second take 0.3 % of a core on one machine, and three times that on another.
# shellcheck source=lib.sh
source "$(dirname "$0")/lib.sh"
begin idle 180 600 --local 4 -- "$@"

resident_mib() {
  local pid kib=0
  for pid in $(cluster_pids); do ((kib += $(awk '/^VmRSS/ { print $2 }' "/proc/$pid/status"))); done
  echo $((kib / 1024))
}

check_resident() {
  local mib
  mib=$(resident_mib)
  echo "$mib MiB resident" | tee -a "$work/figures"
  ((mib > 0 && mib < $1)) || { echo "that is not between 0 and $1"; return 1; }
}

# Of all threads so far: hundredths of a second of CPU time.
ticks() {
  local pid total=0
  for pid in $(cluster_pids); do ((total += $(awk '{ print $14 + $15 }' "/proc/$pid/stat"))); done
  echo "$total"
}

# Of all threads so far: how often they went to sleep, as often as they were woken.
sleeps() {
  local pid total=0
  for pid in $(cluster_pids); do
    ((total += $(cat /proc/"$pid"/task/*/status | awk '/^voluntary_ctxt_switches/ { n += $2 } END { print n + 0 }')))
  done
  echo "$total"
}

# The least of three measurements at most: something may be due just then, such as a compaction. Each is divided by the time
# that it took: on a machine with other work, counting takes seconds in which the daemons go on.
check_idle() {
  local began elapsed ticks_before sleeps_before used woken attempt
  for attempt in 1 2 3; do
    began=${EPOCHREALTIME/./} ticks_before=$(ticks) sleeps_before=$(sleeps)
    sleep "$(choose 10 60)" # what is measured: doing nothing
    used=$(($(ticks) - ticks_before)) woken=$(($(sleeps) - sleeps_before)) elapsed=$(((${EPOCHREALTIME/./} - began) / 1000))
    echo "$used hundredths of a second and $woken wake-ups in $elapsed ms" | tee -a "$work/figures"
    ((woken > 0 && 1000 * woken < 40 * elapsed && 1000 * used < 5 * elapsed)) && return 0
  done
  echo "that is 40 wake-ups a second or more, or 5 % of a core, $attempt times"
  return 1
}

work_a_little() {
  "$programs/large_file.py" "$here/large" "$(choose 128 1024)"
  mkdir "$here/names"
  "$programs/many_entries.py" "$here/names/dir" "$(choose 5000 100000)"
}

step "idle: less than 300 MiB resident" check_resident 300
step "idle: hardly woken" check_idle
step "files written, read, made and removed" work_a_little
step "idle again: hardly woken" check_idle
note "$(tr '\n' ';' <"$work/figures") after work: $(resident_mib) MiB resident"
