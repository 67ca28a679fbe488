// Problems of an OST that people should be shown: a bounded list without repetitions. Thread-safe.
#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "common/ids.h"

namespace nacre::ost {

struct Problem {
  std::string text;
  Fid file;  // that it is about; zero: about none
};

class Problems {
 public:
  static constexpr size_t kMax = 100;

  // false: it is known already, or the list is full.
  bool Add(std::string text, Fid file = {}) {
    std::lock_guard lock(mutex_);
    if (problems_.size() >= kMax) return false;
    for (const Problem& known : problems_) {
      if (known.text == text) return false;
    }
    problems_.push_back({std::move(text), file});
    return true;
  }

  std::vector<Problem> List() const {
    std::lock_guard lock(mutex_);
    return problems_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<Problem> problems_;
};

}  // namespace nacre::ost
