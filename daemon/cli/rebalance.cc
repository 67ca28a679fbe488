#include "daemon/cli/rebalance.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include <algorithm>
#include <cerrno>
#include <cmath>

#include "common/units.h"

namespace nacre::cli {

StatusOr<uint32_t> ParseThreshold(const std::string& text) {
  double points = 0;
  const bool number = absl::SimpleAtod(text, &points);
  // Written so that what is no number fails.
  if (number && points >= 0.01 && points <= 100) return static_cast<uint32_t>(std::lround(100 * points));
  return ErrnoError(
      EINVAL, absl::StrFormat("a threshold of '%s': percentage points from 0.01 to 100 are possible", text));
}

double SpreadOf(const proto::RebalanceState& state) {
  double spread = 0;
  for (const proto::OstClass& one : state.classes())
    spread = std::max(spread, one.fullest() - one.emptiest());
  return spread;
}

bool HasOneOst(const proto::RebalanceState& state) {
  return std::ranges::all_of(state.classes(),
                             [](const proto::OstClass& one) { return one.osts() + one.down() <= 1; });
}

std::vector<std::string> ClassTexts(const proto::RebalanceState& state) {
  std::vector<std::string> texts;
  for (const proto::OstClass& one : state.classes()) {
    const std::string copies =
        state.classes_size() == 1 && one.copies() == 1
            ? ""
            : absl::StrFormat(" of %d %s", one.copies(), one.copies() == 1 ? "copy" : "copies");
    std::string text = absl::StrFormat("%d OST%s%s", one.osts(), one.osts() == 1 ? "" : "s", copies);
    if (one.osts() > 0) {
      absl::StrAppendFormat(&text, ": from %.1f%% to %.1f%% full, mean %.1f%%", one.emptiest(), one.fullest(),
                            one.mean());
    }
    if (one.down() > 0) absl::StrAppendFormat(&text, "; %d down", one.down());
    texts.push_back(std::move(text));
  }
  return texts;
}

std::string SpreadText(const proto::RebalanceState& state) {
  return absl::StrFormat("%.2f percentage points apart (threshold %g)", SpreadOf(state),
                         state.threshold() / 100.0);
}

std::string RebalanceText(const proto::RebalanceState& state) {
  std::string text =
      absl::StrFormat("%d file%s (%s) moved, %s", state.moved_files(), state.moved_files() == 1 ? "" : "s",
                      HumanSize(state.moved_bytes()), SpreadText(state));
  if (state.stuck_files() > 0) {
    absl::StrAppendFormat(&text, ", %d file%s could not be moved yet", state.stuck_files(),
                          state.stuck_files() == 1 ? "" : "s");
  }
  return text;
}

std::vector<std::string> DryRunLines(const proto::RebalanceState& state) {
  std::vector<std::string> lines = ClassTexts(state);
  if (HasOneOst(state)) {
    lines.push_back("there are no two OSTs of as many copies: nothing can be moved");
    return lines;
  }
  if (state.even()) {
    lines.push_back("they are even: " + SpreadText(state));
    return lines;
  }
  uint64_t bytes = 0;
  for (const proto::OstClass& one : state.classes()) bytes += one.excess_bytes();
  lines.push_back(
      absl::StrFormat("they are %s: about %s would be moved", SpreadText(state), HumanSize(bytes)));
  return lines;
}

std::vector<std::string> RebalanceLines(const proto::ClusterStatus& status) {
  const proto::RebalanceState& state = status.rebalance();
  if (!state.running()) return {};
  std::vector<std::string> lines = {"rebalancing: " + RebalanceText(state)};
  for (const std::string& text : ClassTexts(state)) lines.push_back("  " + text);
  if (!state.problem().empty()) lines.push_back("  not yet: " + state.problem());
  return lines;
}

Json RebalanceToJson(const proto::RebalanceState& state) {
  Json classes = Json::array();
  for (const proto::OstClass& one : state.classes()) {
    classes.push_back({{"copies", one.copies()},
                       {"osts", one.osts()},
                       {"down", one.down()},
                       {"mean_percent", one.mean()},
                       {"fullest_percent", one.fullest()},
                       {"emptiest_percent", one.emptiest()},
                       {"excess_bytes", one.excess_bytes()}});
  }
  return {{"running", state.running()},
          {"threshold", state.threshold() / 100.0},
          {"spread", SpreadOf(state)},
          {"moved_files", state.moved_files()},
          {"moved_bytes", state.moved_bytes()},
          {"stuck_files", state.stuck_files()},
          {"problem", state.problem()},
          {"end", state.end()},
          {"even", state.even()},
          {"classes", classes}};
}

}  // namespace nacre::cli
