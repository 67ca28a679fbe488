// Bugs that can be planted in a cluster, each to be found by the simulation (docs/testing.md).
#pragma once

#include <map>
#include <string>

namespace nacre::sim {

enum class Plant {
  kNone,
  kRepeatTwice,
  kCommitBeforeData,
  kEarlySync,
  kNoRecall,
  kForgetLosses,
  kUnlocked,
  kNoReserve,
  kPatientFence,
  kLeakPage,
  kNoExpiry,
  kKeepIntent,
  kRenameFirst,
  kUncovered,
  kLateGrant,
  kUntold,
  kHasty,
  kEarlyRelease,
  kKeptData,
  kSharedUntold,
  kUnsettledTail,
  kSameGeneration,
  kOverlooked,
  kEarlyAck,
  kUnagreed,
  kUnfenced,
  kEpochless,
  kEarlyRead,
  kEarlyCall,
  kBlindMigration,
  kUnrecalledMigration,
  kBlindMend,
  kUnwitnessed,
  kListed,
  kUnaskedRemoval,
  kStaysComplete,
};
// By their names.
const std::map<std::string, Plant>& Plants();

struct ClusterOptions;
// In the servers and clients of the cluster; kNone: in none.
void SwitchOn(Plant plant, ClusterOptions* cluster);

}  // namespace nacre::sim
