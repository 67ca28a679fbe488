// What is wrong with an OST and should be shown to people: a bounded list without repetitions. Thread-safe.
#pragma once

#include <algorithm>
#include <mutex>
#include <string>
#include <vector>

namespace nacre::ost {

class Problems {
 public:
  static constexpr size_t kMax = 100;

  // false: it is known already, or the list is full.
  bool Add(std::string text) {
    std::lock_guard lock(mutex_);
    if (texts_.size() >= kMax || std::find(texts_.begin(), texts_.end(), text) != texts_.end()) return false;
    texts_.push_back(std::move(text));
    return true;
  }

  std::vector<std::string> List() const {
    std::lock_guard lock(mutex_);
    return texts_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> texts_;
};

}  // namespace nacre::ost
