#!/usr/bin/env bash
# bench/mounts: what it is told wrongly it says, its short form works (its figures are nobody's business here), and nothing stays behind,
# also when it is stopped in the middle or one of its mounts does not start.
# shellcheck source=lib.sh
source "$(dirname "$0")/lib.sh"
begin mounts 240 600 --bare -- "$@"
for tool in fio git; do
  have "$tool" || skip "no $tool here; deploy/install-deps brings it"
done
mkdir "$work/bench"
mounts=("$repository/bench/mounts" --quick --dir "$work/bench")

# says STATUS TEXT COMMAND…
says() {
  local wanted=$1 text=$2 output status=0
  shift 2
  output=$("$@" 2>&1) || status=$?
  ((status == wanted)) && grep -qF -- "$text" <<<"$output" || { echo "$*: exit status $status: $output"; return 1; }
}

nothing_left() {
  [[ -z $(ls -A "$work/bench") ]] || { echo "left: $(ls "$work/bench")"; return 1; }
  [[ -z $(cluster_pids) ]] || { echo "still running: $(cluster_pids)"; return 1; }
  fails grep -qF "$work/bench" /proc/self/mountinfo
}

mistakes() {
  says 2 "--mounts 1: 2 to 64" "${mounts[@]}" --mounts 1
  says 2 "'0' is no number above 0" "${mounts[@]}" --rounds 0
  says 2 "'3X' is no size" "${mounts[@]}" --size 3X
  says 2 "--files 2: each of 3 mounts needs one" "${mounts[@]}" --files 2
  says 1 "unknown test creat; known are create_1" "${mounts[@]}" --tests creat
  says 1 "not a directory" "${mounts[@]}" --dir "$work/none"
  says 1 "are free, " "${mounts[@]}" --size 1000000G
  nothing_left
}

short_form() {
  local tests=create_1,write4k_1,seq_read,own_2_stat,reread,turns,handover_first,handback
  "${mounts[@]}" --tests "$(choose $tests '')" --json >"$work/figures"
  python3 - "$work/figures" <<'PYTHON'
import json, sys
summary = json.load(open(sys.argv[1]))
assert "cores" in summary["machine"], summary["machine"]
for row in summary["rows"]:
    assert list(row["filesystems"]) == ["lone", "of 3", "passthrough"], row
    assert all(figures["median"] > 0 for figures in row["filesystems"].values()), row
    assert set(row["messages"]) == {"lone", "of 3"}, row
rows = {row["test"]: row for row in summary["rows"]}
assert rows["write4k_1"]["messages"]["lone"].get("unlink", 0) == 0, "what is removed afterwards is counted, too"
assert rows["turns"]["messages"]["of 3"]["rename"] == 1 / 8, rows["turns"]
PYTHON
  nothing_left
}

stopped() {
  in_background "${mounts[@]}" 2>"$work/said" >/dev/null
  local pid=$! status=0
  wait_for 60 "the first round" grep -q 'round 1/1' "$work/said"
  kill -TERM "$pid"
  wait "$pid" || status=$?
  ((status == 1)) && grep -q 'stopped by a signal' "$work/said" || { echo "exit status $status"; cat "$work/said"; return 1; }
  nothing_left
}

without_a_mount() {
  mkdir "$work/bin"
  ln -s "$bin"/* "$work/bin"
  ln -sf "$(command -v false)" "$work/bin/nacre-client"
  NACRE_BIN=$work/bin says 1 "client.1 did not start" "${mounts[@]}"
  nothing_left
}

step "mistakes in what it is told" mistakes
step "the short form" short_form
step "stopped in the middle" stopped
step "a mount that does not start" without_a_mount
