// Which OSTs a new file's stripes go to: round robin while the free space of all is alike, by free space at
// random otherwise (Lustre's rule: unlike means that the emptiest and the fullest differ by more than 17 %).
// Deterministic under a seeded Random. A choice costs what its stripes do, not what the cluster's OSTs do:
// what depends on all of them is worked out once for each change of them (UsableOsts).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "common/ids.h"
#include "common/random.h"

namespace nacre::cluster {

struct OstSpace {
  OstIndex index = 0;
  uint64_t total_bytes = 0;
  uint64_t available_bytes = 0;
  uint32_t copies = 1;
};

// Whether round robin is still fair: (most - least) / most <= 17 %.
bool SpaceIsAlike(const std::vector<OstSpace>& osts);

// The OSTs that new files may go to, as they were at one moment. Immutable.
class UsableOsts {
 public:
  // `all` that are known: of a number of copies that none of `osts` has, those that are down are usable.
  explicit UsableOsts(std::vector<OstSpace> osts, std::vector<OstSpace> all = {});

  bool empty() const { return osts_.empty(); }
  size_t size() const { return osts_.size(); }
  const OstSpace& operator[](size_t i) const { return osts_[i]; }
  bool alike() const { return alike_; }

  // Where an OST's free MiB begin and end among those of all, one after the other.
  uint64_t BeginOf(size_t i) const { return i == 0 ? 0 : ends_[i - 1]; }
  uint64_t EndOf(size_t i) const { return ends_[i]; }
  uint64_t total() const { return empty() ? 0 : ends_.back(); }
  size_t At(uint64_t mebibyte) const;  // below total(): whose that is

  // Those that have so many copies; 0: the least number that any has. Null: there is none. Lives as long as
  // this.
  const UsableOsts* WithCopies(uint32_t copies) const;
  std::vector<uint32_t> Copies() const;  // the numbers that there are
  bool Includes(OstIndex index) const;   // with whatever number

 private:
  void SortByCopies(const std::vector<OstSpace>& all);

  std::vector<OstSpace> osts_;  // in the order of their indices
  bool alike_;
  std::vector<uint64_t> ends_;
  uint32_t least_copies_ = 0;
  std::map<uint32_t, std::unique_ptr<UsableOsts>> by_copies_;  // null: this one, which has no others
};

// Thread-safe.
class OstChooser {
 public:
  explicit OstChooser(Random& random) : random_(random) {}

  // `count` different ones out of `osts` (all of them if there are fewer), in stripe order. Those without any
  // space come last: they are taken only when the others do not suffice.
  std::vector<OstIndex> Choose(const UsableOsts& osts, size_t count);

 private:
  std::vector<OstIndex> RoundRobin(const UsableOsts& osts, size_t count);
  std::vector<OstIndex> Weighted(const UsableOsts& osts, size_t count);

  std::mutex mutex_;
  Random& random_;
  uint64_t next_ = 0;  // where the next file begins
};

}  // namespace nacre::cluster
