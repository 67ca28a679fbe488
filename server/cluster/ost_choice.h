// Which OSTs a new file's stripes go to: round robin while the free space of all is alike, by free space at
// random otherwise (Lustre's rule: unlike means that the emptiest and the fullest differ by more than 17 %).
// Thread-safe. Deterministic under a seeded Random.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "common/ids.h"
#include "common/random.h"

namespace nacre::cluster {

struct OstSpace {
  OstIndex index = 0;
  uint64_t total_bytes = 0;
  uint64_t available_bytes = 0;
};

// Whether round robin is still fair: (most - least) / most <= 17 %.
bool SpaceIsAlike(const std::vector<OstSpace>& osts);

class OstChooser {
 public:
  explicit OstChooser(Random& random) : random_(random) {}

  // `count` different ones out of `osts` (all of them if there are fewer), in stripe order. Those without any
  // space come last: they are taken only when the others do not suffice.
  std::vector<OstIndex> Choose(std::vector<OstSpace> osts, size_t count);

 private:
  std::vector<OstIndex> RoundRobin(const std::vector<OstSpace>& osts, size_t count);
  std::vector<OstIndex> Weighted(std::vector<OstSpace> osts, size_t count);

  std::mutex mutex_;
  Random& random_;
  uint64_t next_ = 0;  // where the next file begins
};

}  // namespace nacre::cluster
