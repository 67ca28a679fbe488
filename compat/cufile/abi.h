// The binary interface of NVIDIA's cuFile (CUDA 13, libcufile 1.15) as far as we answer it, declared by
// ourselves: a build needs no CUDA. Names of types are NVIDIA's, since that is how callers know them. Types
// and constants only; the functions are in cufile.cc.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <ctime>

struct CUstream_st;

namespace nacre::cufile {

enum CUfileOpError : int {
  kSuccess = 0,
  kDriverNotInitialized = 5001,
  kDriverUnsupportedLimit = 5003,
  kDriverClosing = 5006,
  kIoNotSupported = 5008,
  kCudaDriverError = 5011,
  kCudaPointerRangeError = 5014,
  kInvalidMappingRange = 5017,
  kInvalidFileType = 5018,
  kInvalidFileOpenFlag = 5019,
  kInvalidValue = 5022,
  kMemoryAlreadyRegistered = 5023,
  kMemoryNotRegistered = 5024,
  kPermissionDenied = 5025,
  kDriverAlreadyOpen = 5026,
  kHandleNotRegistered = 5027,
  kHandleAlreadyRegistered = 5028,
  kInternalError = 5030,
  kAsyncNotSupported = 5038,
  kInternalBatchSubmitError = 5040,
  kInternalBatchGetStatusError = 5041,
};

struct CUfileError_t {
  CUfileOpError err;
  int cu_err;  // a CUresult
};

inline CUfileError_t Answer(CUfileOpError error) { return {error, 0}; }

enum CUfileFileHandleType : int { kOpaqueFd = 1, kOpaqueWin32 = 2, kUserspaceFs = 3 };

struct CUfileDescr_t {
  CUfileFileHandleType type;
  union {
    int fd;
    void* handle;
  } handle;
  const void* fs_ops;
};

using CUfileHandle_t = void*;
using CUfileBatchHandle_t = void*;
using CUstream = CUstream_st*;

enum CUfileOpcode_t : int { kRead = 0, kWrite = 1 };
enum CUfileStatus_t : int {
  kWaiting = 0x1,
  kPending = 0x2,
  kInvalid = 0x4,
  kCanceled = 0x8,
  kComplete = 0x10,
  kTimeout = 0x20,
  kFailed = 0x40,
};
enum CUfileBatchMode_t : int { kBatch = 1 };

struct CUfileIOParams_t {
  CUfileBatchMode_t mode;
  union {
    struct {
      void* devPtr_base;
      off_t file_offset;
      off_t devPtr_offset;
      size_t size;
    } batch;
  } u;
  CUfileHandle_t fh;
  CUfileOpcode_t opcode;
  void* cookie;
};

struct CUfileIOEvents_t {
  void* cookie;
  CUfileStatus_t status;
  size_t ret;  // bytes, or an errno value below zero
};

struct CUfileDrvProps_t {
  struct {
    unsigned major_version;
    unsigned minor_version;
    size_t poll_thresh_size;    // KiB
    size_t max_direct_io_size;  // KiB
    unsigned dstatusflags;      // a bit for each kind of file that NVIDIA's kernel module knows
    unsigned dcontrolflags;
  } nvfs;
  unsigned fflags;
  unsigned max_device_cache_size;       // KiB
  unsigned per_buffer_cache_size;       // KiB
  unsigned max_device_pinned_mem_size;  // KiB
  unsigned max_batch_io_size;
  unsigned max_batch_io_timeout_msecs;
};

static_assert(sizeof(CUfileError_t) == 8 && sizeof(CUfileDescr_t) == 24 && sizeof(CUfileIOParams_t) == 64 &&
              sizeof(CUfileIOEvents_t) == 24 && sizeof(CUfileDrvProps_t) == 56);

}  // namespace nacre::cufile
