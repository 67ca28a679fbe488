// The registrations of this process with cuFile: whether the driver is open, files, buffers. One for the
// process, never destroyed: callers' threads and exit handlers outlive static objects. Thread-safe.
#pragma once

#include <fcntl.h>
#include <nacre/nacre.h>

#include <map>
#include <memory>
#include <mutex>
#include <set>

#include "compat/cufile/abi.h"

namespace nacre::cufile {

// A registered file. Lives as long as its handle, or as somebody uses it.
class File {
 public:
  virtual ~File() = default;

  // As cuFileRead and cuFileWrite: bytes, or -1 with errno. `base` may be registered; the bytes lie at
  // base + offset.
  virtual ssize_t Read(void* base, off_t memory_offset, size_t size, off_t offset) = 0;
  virtual ssize_t Write(const void* base, off_t memory_offset, size_t size, off_t offset) = 0;
  // In stream order. Null where the file is ours: streams.h does it then.
  virtual const CUfileError_t* Async(bool writes, void* base, size_t* size, off_t* offset,
                                     off_t* memory_offset, ssize_t* done, CUstream stream,
                                     CUfileError_t* answer) = 0;
  // Of a file on a Nacre mount; {0}: it lies elsewhere.
  virtual nacre_file handle() const { return {}; }
  virtual nacre_client client() const { return {}; }

  // Whether bytes are on stable storage when they are written.
  bool is_synchronous() const { return (flags & (O_SYNC | O_DSYNC)) != 0; }

  int fd = -1;
  int flags = 0;  // it was opened with
};
using FilePtr = std::shared_ptr<File>;

class State {
 public:
  static State& Get();

  // --- the driver: a count of opens ---
  void Open();
  void OpenIfNobodyHas();
  CUfileError_t Close();
  long use_count();

  // --- files ---
  CUfileError_t Register(const CUfileDescr_t& descriptor, CUfileHandle_t* handle);
  void Deregister(CUfileHandle_t handle);
  FilePtr Find(CUfileHandle_t handle);
  bool WasDeregistered(CUfileHandle_t handle);

  // --- memory ---
  // Noted, no more: libnacre registers memory by itself when it is used (nacre_extent), and NVIDIA's library
  // takes what was not registered with it.
  CUfileError_t RegisterMemory(const void* base, size_t size);
  CUfileError_t DeregisterMemory(const void* base);
  // False: the base is registered, and this leaves it.
  bool Fits(const void* base, off_t offset, size_t size);

 private:
  // Opens it by a client of its mount. An errno value: ENOTSUP if it is on no Nacre mount.
  int OpenOnMount(int fd, dev_t device, nacre_client* client, nacre_file* file);

  std::mutex mutex_;
  long opens_ = 0;
  bool was_open_ = false;
  std::map<CUfileHandle_t, FilePtr> files_;
  std::set<CUfileHandle_t> gone_;
  uintptr_t last_handle_ = 0;
  std::map<const void*, size_t> memory_;
  std::mutex connecting_;
  std::map<dev_t, nacre_client> clients_;  // by the mount's device number; guarded by connecting_
};

}  // namespace nacre::cufile
