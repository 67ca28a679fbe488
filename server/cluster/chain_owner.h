// The interface to the registry that a ChainKeeper belongs to. Thread-safe; called without locks.
#pragma once

#include <absl/functional/any_invocable.h>

#include <memory>
#include <string>
#include <vector>

#include "common/ids.h"
#include "common/status.h"
#include "common/task.h"
#include "transport/transport.h"

namespace nacre::cluster {

class ChainOwner {
 public:
  virtual ~ChainOwner() = default;
  virtual StatusOr<std::shared_ptr<Peer>> Connect(const std::string& address) = 0;
  // The way to the OST leads there from now on.
  virtual void PointTo(OstIndex index, const std::shared_ptr<Peer>& head) = 0;
  // Is told that what others see of an OST has changed.
  virtual void Changed() = 0;
  // Rises with each fence that is noted.
  virtual uint64_t fences() const = 0;
  // Runs `mark` unless a fence has been noted since, during which none is.
  virtual bool IfNoFenceSince(uint64_t fences, absl::AnyInvocable<void()> mark) = 0;
  // The sessions that the OST has yet to be told to refuse.
  virtual StatusOr<std::vector<SessionId>> MissedFences(OstIndex index) = 0;
  virtual Task<Status> AdmitHead(OstIndex index) = 0;
  virtual std::shared_ptr<void> Hold() = 0;  // null: it is ending
};

}  // namespace nacre::cluster
