// Problems of an OST that people should be shown: a bounded list without repetitions. Thread-safe.
#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "common/ids.h"

namespace nacre::ost {

struct Problem {
  std::string text;
  Fid file;           // that it is about; zero: about none
  uint64_t look = 0;  // of the scrub in which it was found last
};

class Problems {
 public:
  static constexpr size_t kMax = 100;

  // false: it is known already, or the list is full.
  bool Add(std::string text, Fid file = {}) {
    std::lock_guard lock(mutex_);
    if (problems_.size() >= kMax) return false;
    for (Problem& known : problems_) {
      if (known.text != text) continue;
      known.look = look_;
      return false;
    }
    problems_.push_back({std::move(text), file, look_});
    return true;
  }

  // A scrub looks at all files from now on, and has looked at all of them: what is about a file and was not
  // found since is so no more.
  void BeginLook() {
    std::lock_guard lock(mutex_);
    ++look_;
  }
  void EndLook() {
    std::lock_guard lock(mutex_);
    std::erase_if(problems_, [&](const Problem& known) { return known.file && known.look < look_; });
  }

  std::vector<Problem> List() const {
    std::lock_guard lock(mutex_);
    return problems_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<Problem> problems_;
  uint64_t look_ = 0;
};

}  // namespace nacre::ost
