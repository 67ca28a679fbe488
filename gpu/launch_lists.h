// The few lists of kernel launches (batch.h), in pinned memory, allocated as they are needed, or all at once.
// For one thread, on which the context is current.
#pragma once

#include <memory>
#include <vector>

#include "gpu/batch.h"
#include "gpu/context.h"

namespace nacre::gpu {

class LaunchLists {
 public:
  explicit LaunchLists(std::shared_ptr<Context> context) : context_(std::move(context)) {}
  ~LaunchLists();
  LaunchLists(const LaunchLists&) = delete;
  LaunchLists& operator=(const LaunchLists&) = delete;

  // All that there may be, if there is memory for them.
  void AllocateAll();
  // An empty list; null while all are in use, or if there is no memory for the first.
  LaunchList* Take();
  void Return(LaunchList* list);
  // Whether a list that is in use will come back.
  bool AnyInUse() const { return free_.size() < lists_.size(); }

 private:
  bool Allocate();

  const std::shared_ptr<Context> context_;
  std::vector<std::unique_ptr<LaunchList>> lists_;
  std::vector<LaunchList*> free_;
};

}  // namespace nacre::gpu
