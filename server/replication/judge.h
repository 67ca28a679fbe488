// The coordinator's records about the copies of the MDT: one that names the primary and the members in sync,
// and the members' addresses (proto/copies.proto, "what is stored").
//
// Thread-safe; every call ends within some seconds. Errors are those of coordination::Coordinator, and
// FAILED_PRECONDITION for a record of a later version, DATA_LOSS for a damaged one.
#pragma once

#include <map>
#include <set>
#include <string>

#include "common/clock.h"
#include "common/status.h"
#include "common/task.h"
#include "server/coordination/coordinator.h"

namespace nacre::replication {

struct MdtRecord {
  std::string filesystem;
  uint64_t epoch = 0;
  std::string primary;
  std::set<std::string> in_sync;
  uint64_t losses = 0;

  bool operator==(const MdtRecord&) const = default;
};

class Judge {
 public:
  Judge(coordination::Coordinator& coordinator, std::string prefix)
      : coordinator_(coordinator), prefix_(std::move(prefix)) {}

  // The record as it was read or written at one moment; revision 0: there is none.
  struct Known {
    MdtRecord record;
    int64_t revision = 0;
  };
  Task<StatusOr<Known>> Read();

  // Replaces the record if it still is that one. The answer is the record as it is now: `to`, or what
  // somebody else has made of it. UNAVAILABLE: it may have been done, or may be later; whoever wants to know
  // asks for the very same change again until he is told.
  Task<StatusOr<Known>> Change(Known from, MdtRecord to);

  Task<Status> Announce(std::string name, std::string address);
  Task<StatusOr<std::map<std::string, std::string>>> Addresses();  // by name

 private:
  coordination::Coordinator& coordinator_;
  const std::string prefix_;
};

}  // namespace nacre::replication
