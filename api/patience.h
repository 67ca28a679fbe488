// How long is waited for requests that go together (Queue, SmallReads): a batch that lasts longer has met a
// server that is away, and those of its reads that others answer go on alone.
#pragma once

#include <algorithm>
#include <vector>

#include "common/clock.h"

namespace nacre::api {

constexpr Duration kBatchPatience = std::chrono::seconds(5);

// Adds the batches whose `patience_ends` has come to *late. Returns when that of the next one will.
template <typename Batches, typename BatchPtr>
Duration FindLate(const Batches& batches, Duration now, std::vector<BatchPtr>* late) {
  Duration next = kNoDeadline;
  for (const BatchPtr& batch : batches) {
    if (batch->patience_ends <= now)
      late->push_back(batch);
    else
      next = std::min(next, batch->patience_ends);
  }
  return next;
}

}  // namespace nacre::api
