// A cluster's status as JSON, with stable names: what `nacre status --json` and `nacre df --json` print, and
// how these fail. Stateless.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "common/status.h"
#include "proto/cluster.pb.h"

namespace nacre::cli {

using Json = nlohmann::ordered_json;

Json StatusToJson(const proto::ClusterStatus& status);
Json SpaceToJson(const proto::ClusterStatus& status);

// Of the OSTs that are up.
struct Space {
  uint64_t total = 0;
  uint64_t available = 0;
  uint64_t used() const { return total - std::min(total, available); }
};
Space OstSpace(const proto::ClusterStatus& status);

// In whole per cent, rounded up as df(1) does.
int PercentUsed(uint64_t total, uint64_t available);

// For people and programs. Names of files and mounts need not be UTF-8, and JSON must be: what is none in
// them is U+FFFD here.
std::string JsonText(const Json& json);

// As Fail (command.h); with `json`, stdout says why, too, for programs that read nothing else.
int FailWith(const Status& why, bool json);

}  // namespace nacre::cli
