// Transfers in the order of CUDA streams, whose arguments count when the stream gets there: each stream that
// has some has a thread, which waits for its turns one after the other and ends when there are no more.
// Thread-safe.
#pragma once

#include "compat/cufile/state.h"

namespace nacre::cufile {

struct LateArguments {
  size_t* size = nullptr;
  off_t* offset = nullptr;
  off_t* memory_offset = nullptr;
  ssize_t* done = nullptr;  // bytes, or an errno value below zero
};

// Of a file on a Nacre mount. Returns at once, unless the stream has very many to do: then when there are
// fewer.
CUfileError_t TransferOnStream(const FilePtr& file, CUfileHandle_t handle, bool writes, void* base,
                               LateArguments arguments, CUstream stream);

}  // namespace nacre::cufile
