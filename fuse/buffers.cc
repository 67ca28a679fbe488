#include "fuse/buffers.h"

#include <linux/fuse.h>
#include <sys/mman.h>

#include <cstdlib>
#include <new>

#include "common/ids.h"

namespace nacre::fuse {
namespace {

// The headers in front of the data of a WRITE end at a page boundary.
constexpr size_t kLead = kBlockSize - sizeof(fuse_in_header) - sizeof(fuse_write_in);

}  // namespace

BufferPool::State::~State() {
  for (void* base : free) std::free(base);
}

std::shared_ptr<std::byte> BufferPool::Take(size_t size) {
  void* base = nullptr;
  {
    std::lock_guard lock(state_->mutex);
    ++state_->taken;
    if (!state_->free.empty()) {
      base = state_->free.back();
      state_->free.pop_back();
    }
  }
  if (base == nullptr) {
    size_t rounded = (size + kBlockSize + kBlockSize - 1) / kBlockSize * kBlockSize;
    base = std::aligned_alloc(kBlockSize, rounded);
    if (base == nullptr) throw std::bad_alloc();
  }
  return {static_cast<std::byte*>(base) + kLead, [state = state_, base](std::byte*) {
            std::lock_guard lock(state->mutex);
            --state->taken;
            if (state->free.size() < state->keep) {
              state->free.push_back(base);
            } else {
              std::free(base);
            }
          }};
}

size_t BufferPool::taken() const {
  std::lock_guard lock(state_->mutex);
  return state_->taken;
}

}  // namespace nacre::fuse
