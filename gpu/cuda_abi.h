// The part of the CUDA driver's binary interface that we use, declared by ourselves: a build needs no CUDA.
// Where there is a cuda.h, tests/gpu/cuda_abi_test.cc checks that both agree. Types and constants only.
#pragma once

#include <cstddef>
#include <cstdint>

struct CUctx_st;
struct CUstream_st;
struct CUevent_st;
struct CUmod_st;
struct CUfunc_st;

namespace nacre::gpu {

using CudaResult = int;
using CudaDevice = int;
using CudaAddress = unsigned long long;  // in a GPU's, or anybody's, memory
using CudaContext = CUctx_st*;
using CudaStream = CUstream_st*;
using CudaEvent = CUevent_st*;
using CudaModule = CUmod_st*;
using CudaFunction = CUfunc_st*;

enum CudaError : CudaResult {
  kCudaSuccess = 0,
  kCudaInvalidValue = 1,
  kCudaOutOfMemory = 2,
  kCudaNotInitialized = 3,
  kCudaNoDevice = 100,
  kCudaInvalidDevice = 101,
  kCudaInvalidContext = 201,
  kCudaNoBinaryForGpu = 209,
  kCudaInvalidHandle = 400,
  kCudaNotFound = 500,
  kCudaNotReady = 600,
  kCudaIllegalAddress = 700,
  kCudaAlreadyRegistered = 712,
  kCudaNotRegistered = 713,
  kCudaNotSupported = 801,
  kCudaStreamCaptureUnsupported = 900,
  kCudaStreamCaptureInvalidated = 901,
  kCudaStreamCaptureImplicit = 906,
};

enum CudaDeviceAttribute : int {
  kCudaMultiprocessors = 16,
  kCudaPciBus = 33,
  kCudaAsyncEngines = 40,
  kCudaUnifiedAddressing = 41,
  kCudaPciDomain = 50,
  kCudaComputeMajor = 75,
  kCudaComputeMinor = 76,
  kCudaHostPointerForRegistered = 91,
  kCudaCanUseStreamMemOpsV1 = 92,
  kCudaHostRegisterSupported = 99,
  kCudaReadOnlyHostRegister = 113,
  kCudaGpuDirectRdma = 116,
  kCudaFlushWritesOptions = 117,
  kCudaWritesOrdering = 118,
  kCudaDmaBuf = 124,
};

enum CudaPointerAttribute : int {
  kCudaPointerContext = 1,
  kCudaPointerMemoryType = 2,
  kCudaPointerDevicePointer = 3,
  kCudaPointerSyncMemops = 6,
  kCudaPointerBufferId = 7,
  kCudaPointerIsManaged = 8,
  kCudaPointerOrdinal = 9,
  kCudaPointerIpcCapable = 10,
  kCudaPointerRangeStart = 11,
  kCudaPointerRangeSize = 12,
};

enum CudaMemoryType : unsigned { kCudaMemoryUnknown = 0, kCudaMemoryHost = 1, kCudaMemoryDevice = 2 };

inline constexpr unsigned kCudaHostAllocPortable = 0x1;
inline constexpr unsigned kCudaHostRegisterPortable = 0x1;
inline constexpr unsigned kCudaHostRegisterReadOnly = 0x8;
inline constexpr unsigned kCudaStreamNonBlocking = 0x1;
inline constexpr unsigned kCudaEventDisableTiming = 0x2;
inline constexpr unsigned kCudaStreamWaitGeq = 0x0;
inline constexpr int kCudaCaptureNone = 0;  // of a stream
inline constexpr int kCudaCaptureActive = 1;
inline constexpr int kCudaCaptureGlobal = 0;  // modes, of a capture or of a thread
inline constexpr int kCudaCaptureRelaxed = 2;

inline constexpr int kCudaDmaBufHandle = 1;
inline constexpr int kCudaWritesOrderedForOwner = 100;
inline constexpr int kCudaFlushToOwner = 100;
inline constexpr int kCudaFlushOptionHost = 1;
inline constexpr int kCudaAccessInStreamOrder = 1;

struct CudaMemLocation {
  int type;
  int id;
};
struct CudaMemcpyAttributes {
  int access_order;
  CudaMemLocation source_hint;
  CudaMemLocation destination_hint;
  unsigned flags;
};

// Rows of `width` bytes, `pitch` bytes apart.
struct CudaMemcpy2D {
  struct Side {
    size_t x, y;
    unsigned type;  // CudaMemoryType
    const void* host;
    CudaAddress device;
    void* array;
    size_t pitch;
  };
  Side from, to;
  size_t width, height;
};

// The functions: X(name, symbol in the library, CUDA version that this signature came with, needed,
// arguments). Where not `needed`, a driver without it still serves; the pointer is null then.
#define NACRE_CUDA_FUNCTIONS(X)                                                                              \
  X(Init, "cuInit", 2000, true, (unsigned))                                                                  \
  X(DriverGetVersion, "cuDriverGetVersion", 2020, true, (int*))                                              \
  X(GetErrorName, "cuGetErrorName", 6000, true, (CudaResult, const char**))                                  \
  X(GetErrorString, "cuGetErrorString", 6000, true, (CudaResult, const char**))                              \
  X(DeviceGetCount, "cuDeviceGetCount", 2000, true, (int*))                                                  \
  X(DeviceGet, "cuDeviceGet", 2000, true, (CudaDevice*, int))                                                \
  X(DeviceGetName, "cuDeviceGetName", 2000, true, (char*, int, CudaDevice))                                  \
  X(DeviceGetPCIBusId, "cuDeviceGetPCIBusId", 4010, true, (char*, int, CudaDevice))                          \
  X(DeviceGetAttribute, "cuDeviceGetAttribute", 2000, true, (int*, int, CudaDevice))                         \
  X(DeviceTotalMem, "cuDeviceTotalMem_v2", 3020, true, (size_t*, CudaDevice))                                \
  X(DevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", 7000, true, (CudaContext*, CudaDevice))              \
  X(DevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", 11000, true, (CudaDevice))                      \
  X(DevicePrimaryCtxGetState, "cuDevicePrimaryCtxGetState", 7000, true, (CudaDevice, unsigned*, int*))       \
  X(CtxPushCurrent, "cuCtxPushCurrent_v2", 4000, true, (CudaContext))                                        \
  X(CtxPopCurrent, "cuCtxPopCurrent_v2", 4000, true, (CudaContext*))                                         \
  X(CtxGetDevice, "cuCtxGetDevice", 2000, true, (CudaDevice*))                                               \
  X(CtxGetStreamPriorityRange, "cuCtxGetStreamPriorityRange", 5050, true, (int*, int*))                      \
  X(StreamCreate, "cuStreamCreate", 2000, true, (CudaStream*, unsigned))                                     \
  X(StreamCreateWithPriority, "cuStreamCreateWithPriority", 5050, true, (CudaStream*, unsigned, int))        \
  X(StreamDestroy, "cuStreamDestroy_v2", 4000, true, (CudaStream))                                           \
  X(StreamSynchronize, "cuStreamSynchronize", 2000, true, (CudaStream))                                      \
  X(StreamGetCtx, "cuStreamGetCtx", 9020, true, (CudaStream, CudaContext*))                                  \
  X(StreamIsCapturing, "cuStreamIsCapturing", 10000, true, (CudaStream, int*))                               \
  X(ThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode", 10010, true, (int*))               \
  X(StreamWriteValue32, "cuStreamWriteValue32_v2", 11070, false,                                             \
    (CudaStream, CudaAddress, uint32_t, unsigned))                                                           \
  X(StreamWaitValue32, "cuStreamWaitValue32_v2", 11070, false,                                               \
    (CudaStream, CudaAddress, uint32_t, unsigned))                                                           \
  X(EventCreate, "cuEventCreate", 2000, true, (CudaEvent*, unsigned))                                        \
  X(EventDestroy, "cuEventDestroy_v2", 4000, true, (CudaEvent))                                              \
  X(EventRecord, "cuEventRecord", 2000, true, (CudaEvent, CudaStream))                                       \
  X(EventQuery, "cuEventQuery", 2000, true, (CudaEvent))                                                     \
  X(MemAlloc, "cuMemAlloc_v2", 3020, true, (CudaAddress*, size_t))                                           \
  X(MemFree, "cuMemFree_v2", 3020, true, (CudaAddress))                                                      \
  X(MemHostAlloc, "cuMemHostAlloc", 2020, true, (void**, size_t, unsigned))                                  \
  X(MemFreeHost, "cuMemFreeHost", 2000, true, (void*))                                                       \
  X(MemHostRegister, "cuMemHostRegister_v2", 6050, true, (void*, size_t, unsigned))                          \
  X(MemHostUnregister, "cuMemHostUnregister", 4000, true, (void*))                                           \
  X(MemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2", 3020, true, (CudaAddress, const void*, size_t, CudaStream))     \
  X(MemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2", 3020, true, (void*, CudaAddress, size_t, CudaStream))           \
  X(Memcpy2DAsync, "cuMemcpy2DAsync_v2", 3020, true, (const CudaMemcpy2D*, CudaStream))                      \
  X(MemcpyBatchAsync, "cuMemcpyBatchAsync", 12080, false,                                                    \
    (CudaAddress*, CudaAddress*, size_t*, size_t, CudaMemcpyAttributes*, size_t*, size_t, size_t*,           \
     CudaStream))                                                                                            \
  X(MemsetD8Async, "cuMemsetD8Async", 3020, true, (CudaAddress, unsigned char, size_t, CudaStream))          \
  X(MemGetHandleForAddressRange, "cuMemGetHandleForAddressRange", 11070, false,                              \
    (void*, CudaAddress, size_t, int, unsigned long long))                                                   \
  X(PointerGetAttributes, "cuPointerGetAttributes", 7000, true, (unsigned, int*, void**, CudaAddress))       \
  X(PointerSetAttribute, "cuPointerSetAttribute", 6000, true, (const void*, int, CudaAddress))               \
  X(FlushGPUDirectRDMAWrites, "cuFlushGPUDirectRDMAWrites", 11030, false, (int, int))                        \
  X(ModuleLoadData, "cuModuleLoadData", 2000, true, (CudaModule*, const void*))                              \
  X(ModuleUnload, "cuModuleUnload", 2000, true, (CudaModule))                                                \
  X(ModuleGetFunction, "cuModuleGetFunction", 2000, true, (CudaFunction*, CudaModule, const char*))          \
  X(LaunchKernel, "cuLaunchKernel", 4000, true,                                                              \
    (CudaFunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CudaStream, void**, \
     void**))

struct CudaFunctions {
#define NACRE_CUDA_MEMBER(name, symbol, version, needed, arguments) CudaResult(*name) arguments = nullptr;
  NACRE_CUDA_FUNCTIONS(NACRE_CUDA_MEMBER)
#undef NACRE_CUDA_MEMBER
};

}  // namespace nacre::gpu
