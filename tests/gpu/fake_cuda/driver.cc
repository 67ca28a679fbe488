// The functions of the driver's interface (gpu/cuda_abi.h). Like the driver, they check what they are given.
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/cuda_abi.h"
#include "tests/gpu/fake_cuda/current.h"
#include "tests/gpu/fake_cuda/fake_cuda.h"
#include "tests/gpu/fake_cuda/knobs.h"
#include "tests/gpu/fake_cuda/memory.h"
#include "tests/gpu/fake_cuda/streams.h"

namespace nacre::fake_cuda {
namespace {

using namespace gpu;

constexpr size_t kShortCopy = 32 << 10;  // streams.h, Unit

bool initialized = false;
CUctx_st contexts[16];

bool KnownDevice(CudaDevice device) { return device >= 0 && device < GetKnobs().devices; }

// Counts a copy; whether it fails now, or breaks the device.
CudaResult CountCopy(CUctx_st* context) {
  long number = GetCounters().copies++;
  long most = GetKnobs().copy_errors, until = GetKnobs().device_error;
  if (until >= 0 && number >= until) context->error = kCudaIllegalAddress;
  return most >= 0 && number >= most ? kCudaInvalidValue : kCudaSuccess;
}

void DeviceCopy(CUctx_st* context, uint64_t device, std::byte* host, size_t size, bool in) {
  auto lock = GetMemory().Lock();
  std::byte* data = GetMemory().Alias(device, size);
  if (data == nullptr) {
    context->error = kCudaIllegalAddress;
    return;
  }
  std::memcpy(in ? data : host, in ? host : data, size);
  if (in && TakeDamage()) data[size / 2] ^= std::byte{1};
}

CudaResult CopyIn(CudaAddress to, const void* from, size_t size, CUstream_st* stream, size_t rows = 1) {
  const Unit unit = size < kShortCopy && rows == 1 ? Unit::kProcessors : Unit::kCopyEngine;
  if (GetMemory().Alias(to, size) == nullptr || from == nullptr || GetMemory().IsPartlyPinned(from, size))
    return kCudaInvalidValue;
  if (CudaResult result = CountCopy(stream->context); result != kCudaSuccess) return result;
  auto* source = static_cast<std::byte*>(const_cast<void*>(from));
  if (GetMemory().IsPinned(from, size)) {
    stream->Enqueue(unit, [=] { DeviceCopy(stream->context, to, source, size, true); });
    return kCudaSuccess;
  }
  // Pageable memory has been read when the call returns.
  auto read = std::make_shared<std::vector<std::byte>>(source, source + size);
  stream->Enqueue(unit, [=] { DeviceCopy(stream->context, to, read->data(), size, true); });
  return kCudaSuccess;
}

CudaResult CopyOut(void* to, CudaAddress from, size_t size, CUstream_st* stream) {
  if (GetMemory().Alias(from, size) == nullptr || to == nullptr || GetMemory().IsPartlyPinned(to, size))
    return kCudaInvalidValue;
  if (CudaResult result = CountCopy(stream->context); result != kCudaSuccess) return result;
  auto* target = static_cast<std::byte*>(to);
  stream->Enqueue(Unit::kCopyEngine, [=] { DeviceCopy(stream->context, from, target, size, false); });
  // Pageable memory is filled before the call returns.
  if (!GetMemory().IsPinned(to, size)) stream->Synchronize();
  return kCudaSuccess;
}

const char* ErrorName(CudaResult result) {
  switch (result) {
    case kCudaSuccess:
      return "CUDA_SUCCESS";
    case kCudaInvalidValue:
      return "CUDA_ERROR_INVALID_VALUE";
    case kCudaOutOfMemory:
      return "CUDA_ERROR_OUT_OF_MEMORY";
    case kCudaNoDevice:
      return "CUDA_ERROR_NO_DEVICE";
    case kCudaNoBinaryForGpu:
      return "CUDA_ERROR_NO_BINARY_FOR_GPU";
    case kCudaIllegalAddress:
      return "CUDA_ERROR_ILLEGAL_ADDRESS";
    case kCudaNotSupported:
      return "CUDA_ERROR_NOT_SUPPORTED";
    default:
      return nullptr;
  }
}

int AttributeValue(int attribute) {
  switch (attribute) {
    case kCudaMultiprocessors:
      return 4;
    case kCudaComputeMajor:
      return 9;
    case kCudaUnifiedAddressing:
    case kCudaHostPointerForRegistered:
    case kCudaHostRegisterSupported:
    case kCudaGpuDirectRdma:
      return 1;
    case kCudaReadOnlyHostRegister:
      return GetKnobs().read_only_register != 0;
    case kCudaDmaBuf:
      return GetKnobs().dma_buf != 0;
    case kCudaWritesOrdering:
      return GetKnobs().ordered != 0 ? kCudaWritesOrderedForOwner : 0;
    default:
      return 0;
  }
}

void StorePointerAttribute(int attribute, const Range& range, uint64_t address, void* value) {
  switch (attribute) {
    case kCudaPointerContext:
      // Memory that was mapped piece by piece (cuMemMap) or comes from a pool belongs to no context.
      *static_cast<CudaContext*>(value) = range.whole ? range.context : nullptr;
      return;
    case kCudaPointerMemoryType:
      *static_cast<unsigned*>(value) = range.type;
      return;
    case kCudaPointerIsManaged:
      *static_cast<unsigned*>(value) = 0;
      return;
    case kCudaPointerOrdinal:
      *static_cast<int*>(value) = range.ordinal;
      return;
    case kCudaPointerIpcCapable:
      *static_cast<unsigned*>(value) = range.whole;
      return;
    case kCudaPointerRangeStart:
      *static_cast<uint64_t*>(value) = range.address;
      return;
    case kCudaPointerRangeSize:
      *static_cast<size_t*>(value) = range.size;
      return;
    case kCudaPointerDevicePointer:
      *static_cast<uint64_t*>(value) = range.type != kCudaMemoryUnknown ? address : 0;
      return;
    case kCudaPointerBufferId:
      *static_cast<uint64_t*>(value) = range.buffer_id;
      return;
    default:
      return;
  }
}

// The function of this name without its version's suffix, as of a CUDA version; null if there is none.
void* FindFunction(std::string_view base, int version) {
  struct Symbol {
    std::string name;
    int version;
  };
  static const std::vector<Symbol> symbols{
#define NACRE_FAKE_SYMBOL(name, symbol, version, needed, arguments) {symbol, version},
      NACRE_CUDA_FUNCTIONS(NACRE_FAKE_SYMBOL)
#undef NACRE_FAKE_SYMBOL
  };
  Dl_info self{};
  dladdr(reinterpret_cast<void*>(&FindFunction), &self);
  void* library = dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  void* found = nullptr;
  for (const Symbol& symbol : symbols) {
    bool same = symbol.name.substr(0, symbol.name.rfind("_v")) == base;
    if (same && symbol.version <= version && symbol.version <= GetKnobs().driver)
      found = dlsym(library, symbol.name.c_str());
  }
  if (library != nullptr) dlclose(library);
  return found;
}

}  // namespace

std::vector<CUctx_st*>& Current() {
  thread_local std::vector<CUctx_st*> current;
  return current;
}

CudaResult Ready() {
  if (!initialized) return kCudaNotInitialized;
  if (Current().empty()) return kCudaInvalidContext;
  return Current().back()->error;
}

std::mutex& ContextsMutex() {
  static auto* mutex = new std::mutex;
  return *mutex;
}

}  // namespace nacre::fake_cuda

using namespace nacre::fake_cuda;

extern "C" {

CudaResult cuDriverGetVersion(int* version) {
  *version = static_cast<int>(GetKnobs().driver);
  return kCudaSuccess;
}
CudaResult cuInit(unsigned) {
  if (long error = GetKnobs().init; error != 0) return error;
  if (GetKnobs().devices == 0) return kCudaNoDevice;
  initialized = true;
  return kCudaSuccess;
}
CudaResult cuGetErrorName(CudaResult result, const char** name) {
  *name = ErrorName(result);
  return *name != nullptr ? kCudaSuccess : kCudaInvalidValue;
}
CudaResult cuGetErrorString(CudaResult result, const char** text) {
  *text = ErrorName(result) != nullptr ? "says the fake driver" : nullptr;
  return *text != nullptr ? kCudaSuccess : kCudaInvalidValue;
}
CudaResult cuGetProcAddress_v2(const char* base, void** function, int version, uint64_t, int*) {
  *function = FindFunction(base, version);
  return kCudaSuccess;
}

CudaResult cuDeviceGetCount(int* count) {
  *count = static_cast<int>(GetKnobs().devices);
  return initialized ? kCudaSuccess : kCudaNotInitialized;
}
CudaResult cuDeviceGet(CudaDevice* device, int ordinal) {
  *device = ordinal;
  return KnownDevice(ordinal) ? kCudaSuccess : kCudaInvalidDevice;
}
CudaResult cuDeviceGetName(char* name, int size, CudaDevice device) {
  std::snprintf(name, size, "Nacre's fake GPU");
  return KnownDevice(device) ? kCudaSuccess : kCudaInvalidDevice;
}
CudaResult cuDeviceGetPCIBusId(char* id, int size, CudaDevice device) {
  std::snprintf(id, size, "FA4E:%02X:00.0", device);
  return KnownDevice(device) ? kCudaSuccess : kCudaInvalidDevice;
}
CudaResult cuDeviceGetAttribute(int* value, int attribute, CudaDevice device) {
  *value = AttributeValue(attribute);
  return KnownDevice(device) ? kCudaSuccess : kCudaInvalidDevice;
}
CudaResult cuDeviceTotalMem_v2(size_t* size, CudaDevice device) {
  *size = size_t{1} << 30;
  return KnownDevice(device) ? kCudaSuccess : kCudaInvalidDevice;
}

CudaResult cuDevicePrimaryCtxRetain(CudaContext* context, CudaDevice device) {
  if (!KnownDevice(device)) return kCudaInvalidDevice;
  std::lock_guard lock(ContextsMutex());
  *context = &contexts[device];
  if ((*context)->retained++ == 0) (*context)->ordinal = device;
  ++GetCounters().contexts;
  return kCudaSuccess;
}
CudaResult cuDevicePrimaryCtxRelease_v2(CudaDevice device) {
  std::lock_guard lock(ContextsMutex());
  if (!KnownDevice(device) || contexts[device].retained == 0) return kCudaInvalidContext;
  --GetCounters().contexts;
  if (--contexts[device].retained > 0) return kCudaSuccess;
  contexts[device].default_stream.reset();
  contexts[device].error = kCudaSuccess;
  GetMemory().FreeAll(&contexts[device]);
  return kCudaSuccess;
}
CudaResult cuCtxPushCurrent_v2(CudaContext context) {
  std::lock_guard lock(ContextsMutex());
  if (context == nullptr || context->retained == 0) return kCudaInvalidContext;
  Current().push_back(context);
  return kCudaSuccess;
}
CudaResult cuCtxPopCurrent_v2(CudaContext* context) {
  if (Current().empty()) return kCudaInvalidContext;
  *context = Current().back();
  Current().pop_back();
  return kCudaSuccess;
}
CudaResult cuCtxGetDevice(CudaDevice* device) {
  if (Current().empty()) return kCudaInvalidContext;
  *device = Current().back()->ordinal;
  return kCudaSuccess;
}

// A context beside the primary one.
CudaResult cuCtxCreate_v2(CudaContext* context, unsigned, CudaDevice device) {
  if (!KnownDevice(device)) return kCudaInvalidDevice;
  auto created = std::make_unique<CUctx_st>();
  created->ordinal = device;
  created->retained = 1;
  *context = created.release();
  Current().push_back(*context);
  ++GetCounters().contexts;
  return kCudaSuccess;
}
CudaResult cuCtxDestroy_v2(CudaContext context) {
  if (context == nullptr) return kCudaInvalidContext;
  GetMemory().FreeAll(context);
  std::erase(Current(), context);
  delete context;
  --GetCounters().contexts;
  return kCudaSuccess;
}
CudaResult cuDevicePrimaryCtxGetState(CudaDevice device, unsigned* flags, int* active) {
  if (!KnownDevice(device)) return kCudaInvalidDevice;
  std::lock_guard lock(ContextsMutex());
  *flags = 0;
  *active = contexts[device].retained > 0;
  return kCudaSuccess;
}

CudaResult cuMemAlloc_v2(CudaAddress* address, size_t size) {
  if (CudaResult result = Ready(); result != kCudaSuccess) return result;
  if (CudaResult result = SafeToCall(); result != kCudaSuccess) return result;
  if (GetKnobs().allocations_wait != 0) Current().back()->queues.Synchronize();
  uint64_t allocated = 0;
  CudaResult result = GetMemory().Allocate(Current().back(), size, &allocated);
  *address = allocated;
  return result;
}
CudaResult cuMemFree_v2(CudaAddress address) {
  CudaResult result = Ready();
  return result == kCudaSuccess ? GetMemory().Free(address) : result;
}
CudaResult cuMemHostAlloc(void** data, size_t size, unsigned) {
  CudaResult result = Ready();
  if (result == kCudaSuccess) result = SafeToCall();
  if (result == kCudaSuccess && GetKnobs().allocations_wait != 0) Current().back()->queues.Synchronize();
  return result == kCudaSuccess ? GetMemory().AllocatePinned(size, data) : result;
}
CudaResult cuMemFreeHost(void* data) {
  return Current().empty() ? CudaResult{kCudaInvalidContext} : GetMemory().FreePinned(data);
}
CudaResult cuMemHostRegister_v2(void* data, size_t size, unsigned flags) {
  CudaResult result = Ready();
  bool read_only = (flags & kCudaHostRegisterReadOnly) != 0;
  return result == kCudaSuccess ? GetMemory().Register(data, size, read_only) : result;
}
CudaResult cuMemHostUnregister(void* data) {
  if (Current().empty()) return kCudaInvalidContext;
  if (GetKnobs().allocations_wait != 0) Current().back()->queues.Synchronize();
  return GetMemory().Unregister(data);
}

CudaResult cuMemcpyHtoDAsync_v2(CudaAddress to, const void* from, size_t size, CudaStream stream) {
  CudaResult result = Ready();
  return result == kCudaSuccess ? CopyIn(to, from, size, StreamOrDefault(stream)) : result;
}
CudaResult cuMemcpyDtoHAsync_v2(void* to, CudaAddress from, size_t size, CudaStream stream) {
  CudaResult result = Ready();
  return result == kCudaSuccess ? CopyOut(to, from, size, StreamOrDefault(stream)) : result;
}
// Only what Nacre uses: to a GPU, rows one behind the other.
CudaResult cuMemcpy2DAsync_v2(const CudaMemcpy2D* copy, CudaStream stream) {
  if (CudaResult result = Ready(); result != kCudaSuccess) return result;
  const auto& [from, to, width, height] = *copy;
  if (from.type != kCudaMemoryHost || to.type != kCudaMemoryDevice || from.pitch != width ||
      to.pitch != width || from.x + from.y + to.x + to.y > 0)
    return kCudaInvalidValue;
  return CopyIn(to.device, from.host, width * height, StreamOrDefault(stream), height);
}
CudaResult cuMemcpyBatchAsync(CudaAddress* to, CudaAddress* from, size_t* sizes, size_t count,
                              CudaMemcpyAttributes* attributes, size_t* attribute_index,
                              size_t attribute_count, size_t* failed, CudaStream stream) {
  if (CudaResult result = Ready(); result != kCudaSuccess) return result;
  if (stream == nullptr || attribute_count != 1 || attribute_index[0] != 0 ||
      attributes[0].access_order != kCudaAccessInStreamOrder)
    return kCudaInvalidValue;
  ++GetCounters().batches;
  // The order within a batch is nobody's business: last first.
  for (size_t i = count; i-- > 0;) {
    *failed = i;
    bool in = GetMemory().Find(to[i]).type == kCudaMemoryDevice;
    CudaResult result = in ? CopyIn(to[i], reinterpret_cast<void*>(from[i]), sizes[i], stream)
                           : CopyOut(reinterpret_cast<void*>(to[i]), from[i], sizes[i], stream);
    if (result != kCudaSuccess) return result;
  }
  return kCudaSuccess;
}
CudaResult cuMemsetD8Async(CudaAddress to, unsigned char value, size_t size, CudaStream stream) {
  if (CudaResult result = Ready(); result != kCudaSuccess) return result;
  if (GetMemory().Alias(to, size) == nullptr) return kCudaInvalidValue;
  ++GetCounters().memsets;
  CUstream_st* target = StreamOrDefault(stream);
  target->Enqueue(Unit::kProcessors, [=] {
    auto lock = GetMemory().Lock();
    std::byte* data = GetMemory().Alias(to, size);
    if (data == nullptr) target->context->error = kCudaIllegalAddress;
    if (data != nullptr) std::memset(data, value, size);
  });
  return kCudaSuccess;
}
CudaResult cuMemGetHandleForAddressRange(void* handle, CudaAddress address, size_t size, int type,
                                         unsigned long long flags) {
  if (type != kCudaDmaBufHandle || flags != 0) return kCudaInvalidValue;
  if (GetKnobs().dma_buf == 0) return kCudaNotSupported;
  return GetMemory().ExportDmaBuf(address, size, static_cast<int*>(handle));
}
CudaResult cuPointerGetAttributes(unsigned count, int* attributes, void** values, CudaAddress address) {
  if (!initialized) return kCudaNotInitialized;
  ++GetCounters().queries;
  Range range = GetMemory().Find(address);
  for (unsigned i = 0; i < count; ++i) StorePointerAttribute(attributes[i], range, address, values[i]);
  return kCudaSuccess;
}
CudaResult cuPointerSetAttribute(const void*, int attribute, CudaAddress address) {
  bool known = GetMemory().Find(address).type == kCudaMemoryDevice;
  return known && attribute == kCudaPointerSyncMemops ? kCudaSuccess : kCudaInvalidValue;
}
CudaResult cuFlushGPUDirectRDMAWrites(int, int) {
  ++GetCounters().flushes;
  return Ready();
}

CudaResult cuModuleLoadData(CudaModule* module, const void* image) {
  if (CudaResult result = Ready(); result != kCudaSuccess) return result;
  if (image == nullptr) return kCudaInvalidValue;
  if (GetKnobs().kernels == 0) return kCudaNoBinaryForGpu;
  *module = new CUmod_st;
  return kCudaSuccess;
}
CudaResult cuModuleUnload(CudaModule module) {
  delete module;
  return kCudaSuccess;
}
CudaResult cuModuleGetFunction(CudaFunction* function, CudaModule, const char* name) {
  *function = FindKernel(name);
  return *function != nullptr ? kCudaSuccess : kCudaNotFound;
}
CudaResult cuLaunchKernel(CudaFunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                          unsigned block_x, unsigned block_y, unsigned block_z, unsigned, CudaStream stream,
                          void** arguments, void**) {
  if (CudaResult result = Ready(); result != kCudaSuccess) return result;
  if (grid_x * grid_y * grid_z == 0 || block_x * block_y * block_z == 0 || block_x > 1024)
    return kCudaInvalidValue;
  ++GetCounters().launches;
  Launch(function, arguments, StreamOrDefault(stream));
  return kCudaSuccess;
}

// --- NVML ---

int nvmlInit_v2() { return 0; }
int nvmlShutdown() { return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char*, void** device) {
  *device = &initialized;
  return 0;
}
int nvmlDeviceGetBAR1MemoryInfo(void*, unsigned long long* total_free_used) {
  constexpr int kNotSupported = 3;
  if (GetKnobs().bar1 == 0) return kNotSupported;
  total_free_used[0] = total_free_used[1] = static_cast<unsigned long long>(GetKnobs().bar1);
  total_free_used[2] = 0;
  return 0;
}

int nacre_fake_cuda_configure(const char* knobs) { return Configure(knobs) ? 0 : -1; }

void* nacre_fake_cuda_alias(const void* device_address) {
  return GetMemory().Alias(reinterpret_cast<uint64_t>(device_address), 1);
}

long nacre_fake_cuda_count(const char* what) {
  Counters& counters = GetCounters();
  std::string_view name = what;
  if (name == "copies") return counters.copies;
  if (name == "batches") return counters.batches;
  if (name == "launches") return counters.launches;
  if (name == "memsets") return counters.memsets;
  if (name == "contexts") return counters.contexts;
  if (name == "streams") return counters.streams;
  if (name == "events") return counters.events;
  if (name == "flushes") return counters.flushes;
  if (name == "queries") return counters.queries;
  if (name == "allocations") return GetMemory().allocations();
  if (name == "pinned") return GetMemory().pinned();
  if (name == "registered") return GetMemory().registered();
  return -1;
}

long nacre_fake_cuda_dma_buf_offset(int fd) {
  std::string path = "/proc/self/fd/" + std::to_string(fd);
  char target[64] = "";
  if (readlink(path.c_str(), target, sizeof target - 1) < 0) return -1;
  return std::strstr(target, "nacre-fake-gpu") != nullptr ? lseek(fd, 0, SEEK_CUR) : -1;
}

}  // extern "C"
