// Errors of write-behind, which nobody waited for: each is reported once through every handle, as Linux does
// with errseq_t. An error that nobody has been told of is reported to a handle that is opened later, too.
//
// Keeps the last error only. Not thread-safe: guarded by its owner.
#pragma once

#include <cstdint>

#include "common/status.h"

namespace nacre::client {

class ErrorSequence {
 public:
  void Note(Status error) {
    ++count_;
    reported_ = false;
    last_ = std::move(error);
  }
  // The place of a new handle in the sequence.
  uint64_t Begin() const { return reported_ ? count_ : count_ - 1; }
  // The error that was noted since `*place`, if any; the handle stands behind it then.
  Status Take(uint64_t* place) {
    if (*place == count_) return OkStatus();
    *place = count_;
    reported_ = true;
    return last_;
  }
  // Whether there is an error that no handle has been told of.
  bool unreported() const { return !reported_; }
  // Rises with each error.
  uint64_t count() const { return count_; }
  const Status& last() const { return last_; }

 private:
  uint64_t count_ = 0;
  bool reported_ = true;
  Status last_;
};

}  // namespace nacre::client
