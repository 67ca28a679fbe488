// Memory that O_DIRECT takes, where the buffer pool is not at hand.
#pragma once

#include <cstddef>
#include <memory>
#include <new>

#include "common/ids.h"

namespace nacre::ost {

struct AlignedDelete {
  void operator()(std::byte* p) const { ::operator delete[](p, std::align_val_t(kBlockSize)); }
};
using AlignedBuffer = std::unique_ptr<std::byte[], AlignedDelete>;

inline AlignedBuffer MakeAligned(size_t size) {
  return AlignedBuffer(static_cast<std::byte*>(::operator new[](size, std::align_val_t(kBlockSize))));
}

}  // namespace nacre::ost
