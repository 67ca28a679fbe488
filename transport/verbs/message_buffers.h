// Registered buffers of one size for messages that are sent and received, made in slabs as they are needed
// and kept. A buffer is named by its index. Thread-safe.
#pragma once

#include <array>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "transport/verbs/domain.h"
#include "transport/verbs/message.h"

namespace nacre::verbs {

class MessageBuffers {
 public:
  MessageBuffers(std::shared_ptr<Domain> domain, uint16_t size) : domain_(std::move(domain)), size_(size) {}

  uint16_t size() const { return size_; }

  StatusOr<uint32_t> Take();
  void Return(uint32_t index);

  // Of a buffer that is taken.
  std::byte* data(uint32_t index) const {
    return slab(index).memory.get() + size_t{index % kBuffersPerSlab} * size_;
  }
  uint32_t local_key(uint32_t index) const { return slab(index).registration->local_key(); }

 private:
  static constexpr uint32_t kBuffersPerSlab = 64;
  static constexpr uint32_t kMaxSlabs = 4096;
  struct Slab {
    std::unique_ptr<std::byte[]> memory;
    std::unique_ptr<Registration> registration;
  };

  const Slab& slab(uint32_t index) const { return *slabs_[index / kBuffersPerSlab]; }
  Status Grow();

  const std::shared_ptr<Domain> domain_;
  const uint16_t size_;
  std::mutex mutex_;
  std::vector<uint32_t> free_;
  uint32_t slab_count_ = 0;
  // A slab does not change any more once an index in it has been handed out, so it is read without the lock.
  std::array<std::unique_ptr<Slab>, kMaxSlabs> slabs_;
};

}  // namespace nacre::verbs
