// A set of bytes as sorted, disjoint, non-touching intervals [begin, end). Made for few intervals: the first
// two cost no allocation. Not thread-safe.
#pragma once

#include <absl/container/inlined_vector.h>

#include <algorithm>
#include <cstdint>

namespace nacre::client {

struct Interval {
  uint32_t begin = 0;
  uint32_t end = 0;
  bool operator==(const Interval&) const = default;
};

class IntervalSet {
 public:
  using Intervals = absl::InlinedVector<Interval, 2>;

  bool empty() const { return intervals_.empty(); }
  size_t size() const { return intervals_.size(); }
  const Intervals& intervals() const { return intervals_; }
  void Clear() { intervals_.clear(); }

  uint32_t Bytes() const {
    uint32_t bytes = 0;
    for (const Interval& i : intervals_) bytes += i.end - i.begin;
    return bytes;
  }

  void Add(uint32_t begin, uint32_t end) {
    if (begin >= end) return;
    auto first = FirstEndingAtOrAfter(begin);
    auto last = first;
    while (last != intervals_.end() && last->begin <= end) {
      begin = std::min(begin, last->begin);
      end = std::max(end, last->end);
      ++last;
    }
    if (first == last) {
      intervals_.insert(first, Interval{begin, end});
      return;
    }
    *first = {begin, end};
    intervals_.erase(first + 1, last);
  }

  void Remove(uint32_t begin, uint32_t end) {
    if (begin >= end) return;
    Intervals left;
    for (const Interval& i : intervals_) {
      if (i.begin < std::min(i.end, begin)) left.push_back({i.begin, std::min(i.end, begin)});
      if (std::max(i.begin, end) < i.end) left.push_back({std::max(i.begin, end), i.end});
    }
    intervals_ = std::move(left);
  }

  bool Covers(uint32_t begin, uint32_t end) const {
    if (begin >= end) return true;
    for (const Interval& i : intervals_) {
      if (i.begin <= begin && begin < i.end) return end <= i.end;
    }
    return false;
  }

  bool Overlaps(uint32_t begin, uint32_t end) const {
    for (const Interval& i : intervals_) {
      if (i.begin < end && begin < i.end) return true;
    }
    return false;
  }

  // The parts of [begin, end) that are not in the set.
  Intervals Missing(uint32_t begin, uint32_t end) const {
    Intervals missing;
    for (const Interval& i : intervals_) {
      if (i.end <= begin) continue;
      if (i.begin >= end) break;
      if (begin < i.begin) missing.push_back({begin, i.begin});
      begin = i.end;
    }
    if (begin < end) missing.push_back({begin, end});
    return missing;
  }

 private:
  Intervals::iterator FirstEndingAtOrAfter(uint32_t position) {
    return std::find_if(intervals_.begin(), intervals_.end(),
                        [&](const Interval& i) { return i.end >= position; });
  }

  Intervals intervals_;
};

}  // namespace nacre::client
