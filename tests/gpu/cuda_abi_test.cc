// gpu/cuda_abi.h against CUDA's own header.
#include "gpu/cuda_abi.h"

#include <gtest/gtest.h>

#ifdef NACRE_HAS_CUDA_H
#include <cuda.h>
#include <cudaTypedefs.h>

namespace nacre::gpu {
namespace {

// Whether a function that is called as the one may be the other: as many arguments, of equal sizes and sorts.
template <typename A, typename B>
constexpr bool kSameSort = sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B>;

template <typename Ours, typename Theirs>
struct SameAbi : std::false_type {};
template <typename R, typename... A, typename S, typename... B>
requires(sizeof...(A) == sizeof...(B)) struct SameAbi<R (*)(A...), S (*)(B...)>
    : std::bool_constant<kSameSort<R, S> && (kSameSort<A, B> && ...)> {
};

#define NACRE_SAME(ours, theirs) static_assert(SameAbi<decltype(CudaFunctions::ours), PFN_##theirs>::value)
NACRE_SAME(Init, cuInit_v2000);
NACRE_SAME(DriverGetVersion, cuDriverGetVersion_v2020);
NACRE_SAME(GetErrorName, cuGetErrorName_v6000);
NACRE_SAME(GetErrorString, cuGetErrorString_v6000);
NACRE_SAME(DeviceGetCount, cuDeviceGetCount_v2000);
NACRE_SAME(DeviceGet, cuDeviceGet_v2000);
NACRE_SAME(DeviceGetName, cuDeviceGetName_v2000);
NACRE_SAME(DeviceGetPCIBusId, cuDeviceGetPCIBusId_v4010);
NACRE_SAME(DeviceGetAttribute, cuDeviceGetAttribute_v2000);
NACRE_SAME(DeviceTotalMem, cuDeviceTotalMem_v3020);
NACRE_SAME(DevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain_v7000);
NACRE_SAME(DevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v11000);
NACRE_SAME(DevicePrimaryCtxGetState, cuDevicePrimaryCtxGetState_v7000);
NACRE_SAME(CtxPushCurrent, cuCtxPushCurrent_v4000);
NACRE_SAME(CtxPopCurrent, cuCtxPopCurrent_v4000);
NACRE_SAME(CtxGetDevice, cuCtxGetDevice_v2000);
NACRE_SAME(CtxGetStreamPriorityRange, cuCtxGetStreamPriorityRange_v5050);
NACRE_SAME(StreamCreate, cuStreamCreate_v2000);
NACRE_SAME(StreamCreateWithPriority, cuStreamCreateWithPriority_v5050);
NACRE_SAME(StreamDestroy, cuStreamDestroy_v4000);
NACRE_SAME(StreamSynchronize, cuStreamSynchronize_v2000);
NACRE_SAME(StreamGetCtx, cuStreamGetCtx_v9020);
NACRE_SAME(StreamIsCapturing, cuStreamIsCapturing_v10000);
NACRE_SAME(ThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode_v10010);
NACRE_SAME(StreamWriteValue32, cuStreamWriteValue32_v11070);
NACRE_SAME(StreamWaitValue32, cuStreamWaitValue32_v11070);
NACRE_SAME(EventCreate, cuEventCreate_v2000);
NACRE_SAME(EventDestroy, cuEventDestroy_v4000);
NACRE_SAME(EventRecord, cuEventRecord_v2000);
NACRE_SAME(EventQuery, cuEventQuery_v2000);
NACRE_SAME(MemAlloc, cuMemAlloc_v3020);
NACRE_SAME(MemFree, cuMemFree_v3020);
NACRE_SAME(MemHostAlloc, cuMemHostAlloc_v2020);
NACRE_SAME(MemFreeHost, cuMemFreeHost_v2000);
NACRE_SAME(MemHostRegister, cuMemHostRegister_v6050);
NACRE_SAME(MemHostUnregister, cuMemHostUnregister_v4000);
NACRE_SAME(MemcpyHtoDAsync, cuMemcpyHtoDAsync_v3020);
NACRE_SAME(MemcpyDtoHAsync, cuMemcpyDtoHAsync_v3020);
NACRE_SAME(Memcpy2DAsync, cuMemcpy2DAsync_v3020);
NACRE_SAME(MemsetD8Async, cuMemsetD8Async_v3020);
NACRE_SAME(MemGetHandleForAddressRange, cuMemGetHandleForAddressRange_v11070);
NACRE_SAME(PointerGetAttributes, cuPointerGetAttributes_v7000);
NACRE_SAME(PointerSetAttribute, cuPointerSetAttribute_v6000);
NACRE_SAME(FlushGPUDirectRDMAWrites, cuFlushGPUDirectRDMAWrites_v11030);
NACRE_SAME(ModuleLoadData, cuModuleLoadData_v2000);
NACRE_SAME(ModuleUnload, cuModuleUnload_v2000);
NACRE_SAME(ModuleGetFunction, cuModuleGetFunction_v2000);
NACRE_SAME(LaunchKernel, cuLaunchKernel_v4000);
#undef NACRE_SAME

static_assert(std::is_same_v<CudaContext, CUcontext> && std::is_same_v<CudaStream, CUstream> &&
              std::is_same_v<CudaEvent, CUevent> && std::is_same_v<CudaModule, CUmodule> &&
              std::is_same_v<CudaFunction, CUfunction> && sizeof(CudaAddress) == sizeof(CUdeviceptr));

#if CUDA_VERSION >= 12080
static_assert(SameAbi<decltype(CudaFunctions::MemcpyBatchAsync), PFN_cuMemcpyBatchAsync_v12080>::value);
static_assert(sizeof(CudaMemcpy2D) == sizeof(CUDA_MEMCPY2D) &&
              offsetof(CudaMemcpy2D, from.type) == offsetof(CUDA_MEMCPY2D, srcMemoryType) &&
              offsetof(CudaMemcpy2D, from.host) == offsetof(CUDA_MEMCPY2D, srcHost) &&
              offsetof(CudaMemcpy2D, from.pitch) == offsetof(CUDA_MEMCPY2D, srcPitch) &&
              offsetof(CudaMemcpy2D, to.type) == offsetof(CUDA_MEMCPY2D, dstMemoryType) &&
              offsetof(CudaMemcpy2D, to.device) == offsetof(CUDA_MEMCPY2D, dstDevice) &&
              offsetof(CudaMemcpy2D, to.pitch) == offsetof(CUDA_MEMCPY2D, dstPitch) &&
              offsetof(CudaMemcpy2D, width) == offsetof(CUDA_MEMCPY2D, WidthInBytes));
static_assert(sizeof(CudaMemcpyAttributes) == sizeof(CUmemcpyAttributes) &&
              offsetof(CudaMemcpyAttributes, source_hint) == offsetof(CUmemcpyAttributes, srcLocHint) &&
              offsetof(CudaMemcpyAttributes, flags) == offsetof(CUmemcpyAttributes, flags) &&
              int{kCudaAccessInStreamOrder} == int{CU_MEMCPY_SRC_ACCESS_ORDER_STREAM});
#endif

#define NACRE_EQUAL(ours, theirs) static_assert(static_cast<long>(ours) == static_cast<long>(theirs))
NACRE_EQUAL(kCudaSuccess, CUDA_SUCCESS);
NACRE_EQUAL(kCudaInvalidValue, CUDA_ERROR_INVALID_VALUE);
NACRE_EQUAL(kCudaOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY);
NACRE_EQUAL(kCudaNotInitialized, CUDA_ERROR_NOT_INITIALIZED);
NACRE_EQUAL(kCudaNoDevice, CUDA_ERROR_NO_DEVICE);
NACRE_EQUAL(kCudaInvalidDevice, CUDA_ERROR_INVALID_DEVICE);
NACRE_EQUAL(kCudaInvalidContext, CUDA_ERROR_INVALID_CONTEXT);
NACRE_EQUAL(kCudaNoBinaryForGpu, CUDA_ERROR_NO_BINARY_FOR_GPU);
NACRE_EQUAL(kCudaInvalidHandle, CUDA_ERROR_INVALID_HANDLE);
NACRE_EQUAL(kCudaNotFound, CUDA_ERROR_NOT_FOUND);
NACRE_EQUAL(kCudaNotReady, CUDA_ERROR_NOT_READY);
NACRE_EQUAL(kCudaIllegalAddress, CUDA_ERROR_ILLEGAL_ADDRESS);
NACRE_EQUAL(kCudaAlreadyRegistered, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
NACRE_EQUAL(kCudaNotRegistered, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
NACRE_EQUAL(kCudaNotSupported, CUDA_ERROR_NOT_SUPPORTED);
NACRE_EQUAL(kCudaStreamCaptureUnsupported, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
NACRE_EQUAL(kCudaStreamCaptureInvalidated, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
NACRE_EQUAL(kCudaStreamCaptureImplicit, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
NACRE_EQUAL(kCudaCaptureNone, CU_STREAM_CAPTURE_STATUS_NONE);
NACRE_EQUAL(kCudaCaptureActive, CU_STREAM_CAPTURE_STATUS_ACTIVE);
NACRE_EQUAL(kCudaCaptureGlobal, CU_STREAM_CAPTURE_MODE_GLOBAL);
NACRE_EQUAL(kCudaCaptureRelaxed, CU_STREAM_CAPTURE_MODE_RELAXED);
NACRE_EQUAL(kCudaPointerContext, CU_POINTER_ATTRIBUTE_CONTEXT);
NACRE_EQUAL(kCudaMultiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
NACRE_EQUAL(kCudaPciBus, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID);
NACRE_EQUAL(kCudaAsyncEngines, CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT);
NACRE_EQUAL(kCudaUnifiedAddressing, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING);
NACRE_EQUAL(kCudaPciDomain, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID);
NACRE_EQUAL(kCudaComputeMajor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
NACRE_EQUAL(kCudaComputeMinor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
NACRE_EQUAL(kCudaHostPointerForRegistered, CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM);
NACRE_EQUAL(kCudaCanUseStreamMemOpsV1, CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1);
NACRE_EQUAL(kCudaHostRegisterSupported, CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED);
NACRE_EQUAL(kCudaReadOnlyHostRegister, CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED);
NACRE_EQUAL(kCudaGpuDirectRdma, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED);
NACRE_EQUAL(kCudaFlushWritesOptions, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS);
NACRE_EQUAL(kCudaWritesOrdering, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING);
NACRE_EQUAL(kCudaDmaBuf, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED);
NACRE_EQUAL(kCudaPointerMemoryType, CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
NACRE_EQUAL(kCudaPointerDevicePointer, CU_POINTER_ATTRIBUTE_DEVICE_POINTER);
NACRE_EQUAL(kCudaPointerIpcCapable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE);
NACRE_EQUAL(kCudaPointerSyncMemops, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS);
NACRE_EQUAL(kCudaPointerBufferId, CU_POINTER_ATTRIBUTE_BUFFER_ID);
NACRE_EQUAL(kCudaPointerIsManaged, CU_POINTER_ATTRIBUTE_IS_MANAGED);
NACRE_EQUAL(kCudaPointerOrdinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
NACRE_EQUAL(kCudaPointerRangeStart, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR);
NACRE_EQUAL(kCudaPointerRangeSize, CU_POINTER_ATTRIBUTE_RANGE_SIZE);
NACRE_EQUAL(kCudaMemoryHost, CU_MEMORYTYPE_HOST);
NACRE_EQUAL(kCudaMemoryDevice, CU_MEMORYTYPE_DEVICE);
NACRE_EQUAL(kCudaHostAllocPortable, CU_MEMHOSTALLOC_PORTABLE);
NACRE_EQUAL(kCudaHostRegisterPortable, CU_MEMHOSTREGISTER_PORTABLE);
NACRE_EQUAL(kCudaHostRegisterReadOnly, CU_MEMHOSTREGISTER_READ_ONLY);
NACRE_EQUAL(kCudaStreamNonBlocking, CU_STREAM_NON_BLOCKING);
NACRE_EQUAL(kCudaEventDisableTiming, CU_EVENT_DISABLE_TIMING);
NACRE_EQUAL(kCudaStreamWaitGeq, CU_STREAM_WAIT_VALUE_GEQ);
NACRE_EQUAL(kCudaDmaBufHandle, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD);
NACRE_EQUAL(kCudaWritesOrderedForOwner, CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER);
NACRE_EQUAL(kCudaFlushToOwner, CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER);
NACRE_EQUAL(kCudaFlushOptionHost, CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST);
#undef NACRE_EQUAL

TEST(CudaAbi, AgreesWithCudaH) { SUCCEED() << "checked by the compiler against CUDA " << CUDA_VERSION; }

}  // namespace
}  // namespace nacre::gpu
#else
TEST(CudaAbi, AgreesWithCudaH) { GTEST_SKIP() << "there was no cuda.h at the build"; }
#endif
