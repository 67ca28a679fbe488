// Files with data here under WRITE leases of their own (client/held_data.h): whoever changes a name of
// which it is not known what it means has to ask about each of them. Thread-safe.
#pragma once

#include <mutex>
#include <set>

#include "common/ids.h"

namespace nacre::client {

class OwnData {
 public:
  void Note(const Fid& file) {
    std::lock_guard lock(mutex_);
    files_.insert(file);
  }
  void Forget(const Fid& file) {
    std::lock_guard lock(mutex_);
    files_.erase(file);
  }
  void ForgetAll() {
    std::lock_guard lock(mutex_);
    files_.clear();
  }
  std::set<Fid> All() {
    std::lock_guard lock(mutex_);
    return files_;
  }

 private:
  std::mutex mutex_;
  std::set<Fid> files_;
};

}  // namespace nacre::client
