// Reads and writes of registered files, with the checks that NVIDIA's library makes, in its order.
// Thread-safe.
#pragma once

#include <nacre/nacre.h>

#include "compat/cufile/state.h"

namespace nacre::cufile {

// Memory that libnacre finds by its address.
nacre_extent ExtentOf(nacre_file file, const void* base, off_t memory_offset, size_t size, off_t offset);

struct Request {
  bool writes = false;
  void* base = nullptr;
  off_t memory_offset = 0;
  size_t size = 0;
  off_t offset = 0;  // in the file
};

// 0, or what errno is to say: an errno value or a CUfileOpError.
int Check(const File& file, const Request& request);

// As cuFileRead and cuFileWrite.
ssize_t Transfer(CUfileHandle_t handle, const Request& request);

}  // namespace nacre::cufile
