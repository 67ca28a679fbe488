#include "gpu/gpus.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <fstream>

#include "gpu/context.h"
#include "gpu/cuda_library.h"
#include "gpu/device_state.h"
#include "gpu/host_pins.h"
#include "gpu/pointer_info.h"

namespace nacre::gpu {
namespace {

int Attribute(const CudaLibrary& cuda, int attribute, CudaDevice device) {
  int value = 0;
  return cuda->DeviceGetAttribute(&value, attribute, device) == kCudaSuccess ? value : 0;
}

int NumaNode(const std::string& pci_bus_id) {
  std::string path = "/sys/bus/pci/devices/" + pci_bus_id + "/numa_node";
  std::transform(path.begin(), path.end(), path.begin(), [](unsigned char c) { return std::tolower(c); });
  int node = -1;
  std::ifstream(path) >> node;
  return node;
}

StatusOr<DeviceInfo> ReadInfo(const CudaLibrary& cuda, int ordinal) {
  DeviceInfo info{.ordinal = ordinal};
  CudaDevice device = 0;
  RETURN_IF_ERROR(cuda.Check(cuda->DeviceGet(&device, ordinal), absl::StrFormat("cuDeviceGet(%d)", ordinal)));
  char text[256] = "";
  RETURN_IF_ERROR(cuda.Check(cuda->DeviceGetName(text, sizeof text, device), "cuDeviceGetName"));
  info.name = text;
  if (cuda->DeviceGetPCIBusId(text, sizeof text, device) == kCudaSuccess) info.pci_bus_id = text;
  size_t memory = 0;
  RETURN_IF_ERROR(cuda.Check(cuda->DeviceTotalMem(&memory, device), "cuDeviceTotalMem"));
  info.memory_bytes = memory;
  info.numa_node = NumaNode(info.pci_bus_id);
  info.compute_major = Attribute(cuda, kCudaComputeMajor, device);
  info.compute_minor = Attribute(cuda, kCudaComputeMinor, device);
  info.dma_buf = cuda->MemGetHandleForAddressRange != nullptr && Attribute(cuda, kCudaDmaBuf, device) != 0;
  info.gpu_direct_rdma = Attribute(cuda, kCudaGpuDirectRdma, device) != 0;
  info.stream_memory_ops = cuda->StreamWriteValue32 != nullptr && cuda->StreamWaitValue32 != nullptr;
  info.read_only_host_register = Attribute(cuda, kCudaReadOnlyHostRegister, device) != 0;
  info.rdma_writes_ordered = Attribute(cuda, kCudaWritesOrdering, device) >= kCudaWritesOrderedForOwner;
  return info;
}

// Whether the CPU could read there: the kernel looks at the address before it refuses the rest.
bool Readable(const void* address) {
  auto aligned = reinterpret_cast<uintptr_t>(address) & ~uintptr_t{7};
  constexpr int kNoSuchWay = -1;
  syscall(SYS_rt_sigprocmask, kNoSuchWay, aligned, nullptr, 8);
  return errno != EFAULT;
}

MemoryKind KindOf(const PointerInfo& info) {
  if (info.managed) return MemoryKind::kManaged;
  if (info.memory_type == kCudaMemoryDevice) return MemoryKind::kDevice;
  return info.memory_type == kCudaMemoryHost ? MemoryKind::kPinned : MemoryKind::kHost;
}

}  // namespace

std::string_view Name(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::kHost:
      return "host";
    case MemoryKind::kPinned:
      return "pinned";
    case MemoryKind::kManaged:
      return "managed";
    case MemoryKind::kDevice:
      return "device";
  }
  return "unknown";
}

Gpus::Gpus(std::shared_ptr<const CudaLibrary> cuda) : cuda_(std::move(cuda)) {}
Gpus::~Gpus() = default;

StatusOr<std::shared_ptr<Gpus>> Gpus::Open(Options options) {
  ASSIGN_OR_RETURN(auto cuda, CudaLibrary::Load(options.library));
  std::shared_ptr<Gpus> gpus(new Gpus(cuda));
  int count = 0;
  RETURN_IF_ERROR(cuda->Check((*cuda)->DeviceGetCount(&count), "cuDeviceGetCount"));
  if (count == 0)
    return ErrnoError(ENODEV, "the CUDA driver shows no GPU; look at CUDA_VISIBLE_DEVICES and nvidia-smi");
  auto pins = std::make_shared<HostPins>(std::make_shared<PinnedRanges>());
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    ASSIGN_OR_RETURN(DeviceInfo info, ReadInfo(*cuda, ordinal));
    gpus->devices_.push_back(std::make_shared<Device>(cuda, pins, std::move(info), options));
  }
  return gpus;
}

int Gpus::driver_version() const { return cuda_->driver_version(); }

StatusOr<MemoryInfo> Gpus::Classify(const void* address, size_t size) const {
  RETURN_IF_ERROR(cuda_->CheckProcess());
  auto at = reinterpret_cast<uint64_t>(address);
  ASSIGN_OR_RETURN(PointerInfo info, QuerySpan(*cuda_, at, std::max<size_t>(size, 1)));
  MemoryInfo memory{.kind = KindOf(info), .buffer_id = info.buffer_id};
  if (memory.kind == MemoryKind::kHost) {
    if (Readable(address)) return memory;
    return ErrnoError(
        EFAULT, absl::StrFormat("%p is memory of no GPU, nor can the CPU read it: was it freed?", address));
  }
  memory.allocation = {reinterpret_cast<std::byte*>(info.start), info.size};
  if (memory.kind != MemoryKind::kDevice) return memory;
  if (info.size > 0 && info.end() - at < size)
    return ErrnoError(EFAULT, absl::StrFormat("%d bytes at %p leave their allocation of %d bytes at 0x%x",
                                              size, address, info.size, info.start));
  if (info.ordinal < 0 || static_cast<size_t>(info.ordinal) >= devices_.size())
    return ErrnoError(EINVAL, absl::StrFormat("%p is memory of the unknown GPU %d", address, info.ordinal));
  RETURN_IF_ERROR(CheckOwner(info, at));
  memory.device = devices_[info.ordinal];
  return memory;
}

// The id of several adjacent allocations is none of theirs.
bool Gpus::IsStill(uint64_t buffer_id, const void* address, size_t size) const {
  if (!cuda_->CheckProcess().ok()) return false;
  int attribute = kCudaPointerBufferId;
  uint64_t id = 0;
  void* value = &id;
  const CudaResult result =
      (*cuda_)->PointerGetAttributes(1, &attribute, &value, reinterpret_cast<uint64_t>(address));
  if (result == kCudaSuccess && id == buffer_id) return true;
  const StatusOr<MemoryInfo> now = Classify(address, size);
  return now.ok() && now->kind == MemoryKind::kDevice && now->buffer_id == buffer_id;
}

// Makes no context: where the primary one is not in use yet, the memory is another's.
Status Gpus::CheckOwner(const PointerInfo& info, uint64_t address) const {
  if (info.context == nullptr) return OkStatus();
  unsigned flags = 0;
  int active = 0;
  RETURN_IF_ERROR(cuda_->Check((*cuda_)->DevicePrimaryCtxGetState(info.ordinal, &flags, &active),
                               "cuDevicePrimaryCtxGetState"));
  if (active == 0) return OtherContext(info, address);
  ASSIGN_OR_RETURN(const std::shared_ptr<DeviceState> state, devices_[info.ordinal]->State());
  return CheckContext(info, address, *state->context());
}

StatusOr<std::shared_ptr<Device>> Gpus::OfStream(void* stream) const {
  RETURN_IF_ERROR(cuda_->CheckProcess());
  CudaContext context = nullptr;
  CudaDevice ordinal = -1;
  RETURN_IF_ERROR(
      cuda_->Check((*cuda_)->StreamGetCtx(static_cast<CudaStream>(stream), &context), "cuStreamGetCtx"));
  const UseContext use(*cuda_, context);
  RETURN_IF_ERROR(use.status());
  RETURN_IF_ERROR(cuda_->Check((*cuda_)->CtxGetDevice(&ordinal), "cuCtxGetDevice"));
  if (ordinal >= 0 && static_cast<size_t>(ordinal) < devices_.size()) return devices_[ordinal];
  return ErrnoError(EIO, absl::StrFormat("the stream %p is of the unknown GPU %d", stream, ordinal));
}

Status Gpus::CheckDeviceSpan(const Device& device, std::span<const std::byte> span) const {
  ASSIGN_OR_RETURN(MemoryInfo memory, Classify(span.data(), span.size()));
  if (memory.device.get() == &device) return OkStatus();
  std::string whose =
      memory.device != nullptr ? memory.device->name() : absl::StrCat("the ", AbslView(Name(memory.kind)));
  return ErrnoError(EINVAL, absl::StrFormat("%p is memory of %s, not of %s",
                                            static_cast<const void*>(span.data()), whose, device.name()));
}

}  // namespace nacre::gpu
