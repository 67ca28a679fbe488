// How evenly OSTs are filled, and how far they are on the way to it (docs/replication.md, Growing and
// shrinking), as people and programs are shown it. Stateless.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/status.h"
#include "daemon/cli/status_json.h"
#include "proto/cluster.pb.h"

namespace nacre::cli {

// Percentage points, as "5" or "2.5", in hundredths of one. EINVAL with the text: it is none from 0.01 to
// 100.
StatusOr<uint32_t> ParseThreshold(const std::string& text);

// By how many percentage points the fullest and the emptiest OST differ, of the number of copies where that
// is most.
double SpreadOf(const proto::RebalanceState& state);
// Whether no number of copies has two OSTs, up or down: nothing can be evened out.
bool HasOneOst(const proto::RebalanceState& state);

// For each number of copies: "from 12.0 % to 45.2 % full, mean 30.1 %".
std::vector<std::string> ClassTexts(const proto::RebalanceState& state);
// "33.2 points apart, 5 are allowed".
std::string SpreadText(const proto::RebalanceState& state);
// While it runs: "12 files (3.00 GiB) moved, 33.2 points apart, 5 are allowed".
std::string RebalanceText(const proto::RebalanceState& state);

// What nacre ost rebalance --dry-run says.
std::vector<std::string> DryRunLines(const proto::RebalanceState& state);

// For nacre status; none unless it is running.
std::vector<std::string> RebalanceLines(const proto::ClusterStatus& status);
Json RebalanceToJson(const proto::RebalanceState& state);

}  // namespace nacre::cli
