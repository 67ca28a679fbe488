// Files that lie on no Nacre mount: NVIDIA's own library serves them where there is one, else pread(2) and
// pwrite(2) with a copy. Stateless; thread-safe.
#pragma once

#include "compat/cufile/abi.h"

namespace nacre::cufile {

// NVIDIA's library, found once, when the first file needs it: what NACRE_CUFILE_NVIDIA names ("none":
// nowhere), else libcufile.so.0 beside CUDA libraries that the process has loaded, or where CUDA is usually
// installed.
class Nvidia {
 public:
  static const Nvidia* Get();  // null: there is none

  const char* path;
  CUfileError_t (*handle_register)(CUfileHandle_t*, CUfileDescr_t*);
  void (*handle_deregister)(CUfileHandle_t);
  ssize_t (*read)(CUfileHandle_t, void*, size_t, off_t, off_t);
  ssize_t (*write)(CUfileHandle_t, const void*, size_t, off_t, off_t);
  CUfileError_t (*read_async)(CUfileHandle_t, void*, size_t*, off_t*, off_t*, ssize_t*, CUstream);
  CUfileError_t (*write_async)(CUfileHandle_t, void*, size_t*, off_t*, off_t*, ssize_t*, CUstream);
};

// By way of host memory. -1 with errno: EIO also where the copy is refused.
ssize_t ReadByCopy(int fd, void* memory, size_t size, off_t offset);
ssize_t WriteByCopy(int fd, const void* memory, size_t size, off_t offset);

}  // namespace nacre::cufile
