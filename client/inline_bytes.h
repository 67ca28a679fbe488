// The bytes of a small file, which lie in the MDT: shared with who reads them, and counted in a budget.
//
// Guarded by its owner; the bytes are replaced, never changed, while they are shared. The budget has to live
// longer.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "client/memory_budget.h"
#include "common/allocator.h"

namespace nacre::client {

class InlineBytes {
 public:
  explicit InlineBytes(MemoryBudget& budget) : budget_(budget) {}
  ~InlineBytes() { reset(); }
  InlineBytes(const InlineBytes&) = delete;
  InlineBytes& operator=(const InlineBytes&) = delete;

  InlineBytes& operator=(std::shared_ptr<std::string> bytes) {
    bytes_ = std::move(bytes);
    Count();
    return *this;
  }
  void reset() { *this = nullptr; }
  std::shared_ptr<std::string> Take() {
    std::shared_ptr<std::string> taken = std::move(bytes_);
    reset();
    return taken;
  }

  // Null: the bytes are not known.
  const std::shared_ptr<std::string>& get() const { return bytes_; }
  bool operator==(std::nullptr_t) const { return bytes_ == nullptr; }
  const std::string& operator*() const { return *bytes_; }
  const std::string* operator->() const { return bytes_.get(); }

  // The bytes, known and at least `size` of them, to be changed in place.
  std::string& Grow(size_t size) {
    if (bytes_.use_count() > 1) bytes_ = std::make_shared<std::string>(*bytes_);
    if (bytes_->size() < size) bytes_->resize(size);
    Count();
    return *bytes_;
  }

 private:
  void Count() {
    constexpr size_t kAround = 64;  // the string itself, and what the allocator adds
    const size_t now = bytes_ == nullptr ? 0 : kAround + AllocationTakes(bytes_->capacity());
    budget_.CountContents(static_cast<int64_t>(now) - static_cast<int64_t>(counted_));
    counted_ = now;
  }

  MemoryBudget& budget_;
  std::shared_ptr<std::string> bytes_;
  size_t counted_ = 0;
};

}  // namespace nacre::client
