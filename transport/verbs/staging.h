// A few registered chunks through which transfers from and to memory that is not registered go. Made when
// first needed; whoever finds none free waits, first come first served. Thread-safe.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "common/task.h"
#include "transport/verbs/domain.h"

namespace nacre::verbs {

class Staging : public std::enable_shared_from_this<Staging> {
 public:
  static constexpr size_t kChunkSize = 256 << 10;

  struct Memory {
    std::unique_ptr<std::byte[]> bytes;
    std::unique_ptr<Registration> registration;
  };

  // Given back at destruction.
  class Chunk {
   public:
    Chunk(std::shared_ptr<Staging> staging, std::unique_ptr<Memory> memory)
        : staging_(std::move(staging)), memory_(std::move(memory)) {}
    Chunk(Chunk&&) = default;
    ~Chunk() {
      if (memory_ != nullptr) staging_->Return(std::move(memory_));
    }
    std::byte* data() const { return memory_->bytes.get(); }
    uint32_t local_key() const { return memory_->registration->local_key(); }

   private:
    std::shared_ptr<Staging> staging_;
    std::unique_ptr<Memory> memory_;
  };

  explicit Staging(std::shared_ptr<Domain> domain) : domain_(std::move(domain)) {}

  // UNAVAILABLE: no chunk can be registered.
  Task<StatusOr<Chunk>> Take();

 private:
  static constexpr size_t kMaxChunks = 32;

  StatusOr<std::unique_ptr<Memory>> Make();
  void Return(std::unique_ptr<Memory> memory);

  const std::shared_ptr<Domain> domain_;
  std::mutex mutex_;
  size_t made_ = 0;
  std::vector<std::unique_ptr<Memory>> free_;
  std::deque<OneShot<std::unique_ptr<Memory>>> waiters_;
};

}  // namespace nacre::verbs
