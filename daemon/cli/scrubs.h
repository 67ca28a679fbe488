// The scrubs of a cluster's stores (docs/replication.md, "Scrubbing"), as text and JSON. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "common/ids.h"
#include "daemon/cli/status_json.h"
#include "proto/cluster.pb.h"

namespace nacre::cli {

// One store: an OST, or a member of one.
struct ScrubbedStore {
  OstIndex ost = 0;
  std::string address;
  bool up = false;
  bool in_sync = true;  // a member that is not is filled before it is scrubbed
  proto::OstInfo info;
};
// In the order of the OSTs and of their chains.
std::vector<ScrubbedStore> ScrubbedStores(const proto::ClusterStatus& status);

// Whether the last scrub has found blocks that nobody else has.
bool FoundLoss(const proto::ScrubState& scrub);
// A number for a new order: higher than that of every order that the stores have taken, whatever the clock of
// the machine says from which they came.
uint64_t NewOrderNumber(const std::vector<ScrubbedStore>& stores, uint64_t clock);
// Whether the store has done what the order with this number says.
bool HasDone(const ScrubbedStore& store, uint64_t order);
// Whether it need not be waited for: it has done that, or cannot for now.
bool IsThrough(const ScrubbedStore& store, uint64_t order);
// "scrubbed 3 days ago: 12.0 GiB read, nothing is wrong"; `now` in seconds since 1970.
std::string ScrubText(const proto::ScrubState& scrub, int64_t now);
Json ScrubToJson(const proto::ScrubState& scrub);

}  // namespace nacre::cli
