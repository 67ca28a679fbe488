// Shows people and programs how evenly OSTs are filled, and how far a rebalancing is (docs/replication.md,
// Growing and shrinking). Stateless.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/status.h"
#include "daemon/cli/status_json.h"
#include "proto/cluster.pb.h"

namespace nacre::cli {

// Returns percentage points, as "5" or "2.5", in hundredths of one. EINVAL with the text: it is none from
// 0.01 to 100.
StatusOr<uint32_t> ParseThreshold(const std::string& text);

// Returns by how many percentage points the fullest and the emptiest OST differ, of the number of copies
// where that is most.
double SpreadOf(const proto::RebalanceState& state);
// Returns whether no number of copies has two OSTs, up or down: nothing can be evened out then.
bool HasOneOst(const proto::RebalanceState& state);

// Describes each number of copies: "3 OSTs: from 12.0% to 45.2% full, mean 30.1%".
std::vector<std::string> ClassTexts(const proto::RebalanceState& state);
// Returns "33.25 percentage points apart (threshold 5)".
std::string SpreadText(const proto::RebalanceState& state);
// Describes one that runs: "12 files (3.00 GiB) moved, 33.25 percentage points apart (threshold 5)".
std::string RebalanceText(const proto::RebalanceState& state);

// Returns the lines of nacre ost rebalance --dry-run.
std::vector<std::string> DryRunLines(const proto::RebalanceState& state);

// Returns the lines of nacre status; none unless it is running.
std::vector<std::string> RebalanceLines(const proto::ClusterStatus& status);
Json RebalanceToJson(const proto::RebalanceState& state);

}  // namespace nacre::cli
