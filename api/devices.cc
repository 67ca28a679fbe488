#include "api/devices.h"

#include <absl/strings/str_format.h>
#include <dlfcn.h>

#include <cerrno>
#include <cstdlib>
#include <mutex>

#include "api/call.h"
#include "api/host_memory.h"
#include "api/operation.h"
#include "gpu/gpus.h"

namespace nacre::api {
namespace {

// Whether this process can have memory of a GPU: it has loaded the driver, or the tests name another one.
bool MayHaveDeviceMemory() {
  if (std::getenv("NACRE_CUDA_LIBRARY") != nullptr) return true;
  void* loaded = ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (loaded == nullptr) return false;
  ::dlclose(loaded);
  return true;
}

nacre_memory Translate(gpu::MemoryKind kind) {
  switch (kind) {
    case gpu::MemoryKind::kHost:
      return NACRE_MEMORY_HOST;
    case gpu::MemoryKind::kPinned:
      return NACRE_MEMORY_PINNED;
    case gpu::MemoryKind::kManaged:
      return NACRE_MEMORY_MANAGED;
    case gpu::MemoryKind::kDevice:
      return NACRE_MEMORY_DEVICE;
  }
  return NACRE_MEMORY_HOST;
}

// The process's GPUs; the error says why there are none.
StatusOr<std::shared_ptr<gpu::Gpus>> FindGpus() {
  static std::mutex mutex;
  static auto& found = *new std::shared_ptr<gpu::Gpus>;  // threads may outlive static objects
  std::lock_guard lock(mutex);
  if (found != nullptr) return found;
  ASSIGN_OR_RETURN(found, gpu::Gpus::Open());
  return found;
}

// Asks CUDA about an address. Without CUDA it is host memory or none at all, and `no_gpus` says why there is
// none.
StatusOr<gpu::MemoryInfo> LookAtMemory(void* address, size_t size, Status* no_gpus) {
  if (!MayHaveDeviceMemory()) {
    *no_gpus = ErrnoError(ENOENT, "this process has not loaded CUDA's driver");
    return gpu::MemoryInfo{};
  }
  const StatusOr<std::shared_ptr<gpu::Gpus>> gpus = FindGpus();
  *no_gpus = gpus.status();
  if (!gpus.ok()) return gpu::MemoryInfo{};
  return (*gpus)->Classify(address, size);
}

// Of a stream of which no buffer in GPU memory says where it is.
StatusOr<std::shared_ptr<gpu::Device>> DeviceOfStream(const gpu::Gpus& gpus, void* stream) {
  if (gpus.devices().size() == 1) return gpus.devices().front();
  StatusOr<std::shared_ptr<gpu::Device>> device = gpus.OfStream(stream);
  if (device.ok()) return device;
  return ErrnoError(EINVAL, absl::StrFormat("no buffer is in GPU memory: which of the GPUs the stream is of, "
                                            "is not known: %s",
                                            device.status().message()));
}

// `device`: null if no memory says which. `connection`: on which what a wait needs is allocated before; null:
// nothing will be done.
StatusOr<std::shared_ptr<gpu::StreamOrder>> EnterStreamOf(const gpu::Gpus& gpus,
                                                          std::shared_ptr<gpu::Device> device, void* stream,
                                                          Connection* connection) {
  if (device == nullptr) {
    ASSIGN_OR_RETURN(device, DeviceOfStream(gpus, stream));
  }
  if (connection != nullptr) RETURN_IF_ERROR(connection->Run(device->ReserveForStreams()));
  ASSIGN_OR_RETURN(std::shared_ptr<gpu::StreamOrder> order, gpu::StreamOrder::Insert(device, stream));
  return order;
}

Status NotOurs(std::span<std::byte> memory, const Status& why, const Status& no_gpus) {
  std::string message(why.message());
  if (why.ok())
    message = absl::StrFormat("%p + %d: this process may not read there", memory.data(), memory.size());
  if (!no_gpus.ok()) message += absl::StrFormat(", and it is no GPU's memory: %s", no_gpus.message());
  return ErrnoError(EFAULT, message);
}

StatusOr<std::shared_ptr<Buffer>> RegisterHost(std::shared_ptr<Client> client, std::span<std::byte> memory,
                                               BufferTraits traits, const Status& no_gpus) {
  const StatusOr<HostAccess> access = LookAtHostMemory(memory.data(), memory.size());
  if (!access.ok() || !access->readable) return NotOurs(memory, access.status(), no_gpus);
  traits.writable = access->writable;
  ASSIGN_OR_RETURN(std::shared_ptr<MemoryRegion> region,
                   client->connection().transport().Register(memory.data(), memory.size()));
  return std::make_shared<Buffer>(std::move(client), std::move(region), std::move(traits));
}

}  // namespace

StatusOr<std::shared_ptr<Buffer>> RegisterMemory(std::shared_ptr<Client> client, void* address, size_t size) {
  if (address == nullptr || size == 0)
    return ErrnoError(EINVAL, absl::StrFormat("a buffer of %d bytes at %p", size, address));
  const std::span<std::byte> memory(static_cast<std::byte*>(address), size);
  Status no_gpus;
  ASSIGN_OR_RETURN(gpu::MemoryInfo info, LookAtMemory(address, size, &no_gpus));
  BufferTraits traits;
  traits.memory = Translate(info.kind);
  if (info.kind != gpu::MemoryKind::kDevice) {
    return RegisterHost(std::move(client), memory, std::move(traits), no_gpus);
  }
  traits.device = info.device;
  traits.id = info.buffer_id;
  traits.verified = info.device->verification() == "gpu" ? NACRE_VERIFIED_DEVICE : NACRE_VERIFIED_HOST;
  StatusOr<std::shared_ptr<MemoryRegion>> region =
      client->connection().transport().RegisterDevice(info.device, memory.data(), memory.size());
  if (region.ok()) return std::make_shared<Buffer>(std::move(client), *std::move(region), traits);
  return ErrnoError(ENOTSUP, absl::StrFormat("memory of %s cannot be read into: %s", info.device->name(),
                                             region.status().message()));
}

Status CheckStillThere(const Buffer& buffer) {
  if (buffer.traits().memory != NACRE_MEMORY_DEVICE) return OkStatus();
  ASSIGN_OR_RETURN(const std::shared_ptr<gpu::Gpus> gpus, FindGpus());
  const MemoryRegion& region = *buffer.region();
  if (gpus->IsStill(buffer.traits().id, region.data(), region.size())) return OkStatus();
  return ErrnoError(EFAULT, absl::StrFormat("the memory of the buffer at %p + %d was freed: release a buffer "
                                            "before its memory, and register new memory anew",
                                            region.data(), region.size()));
}

StatusOr<gpu::MemoryInfo> ClassifyMemory(void* address, size_t size) {
  Status no_gpus;
  return LookAtMemory(address, size, &no_gpus);
}

StatusOr<std::shared_ptr<gpu::StreamOrder>> JoinStream(void* stream, const Operation& operation) {
  ASSIGN_OR_RETURN(const std::shared_ptr<gpu::Gpus> gpus, FindGpus());
  std::shared_ptr<gpu::Device> device;
  const std::vector<std::shared_ptr<Buffer>> buffers = operation.Buffers();
  for (const std::shared_ptr<Buffer>& buffer : buffers) {
    const std::shared_ptr<gpu::Device>& its = buffer->traits().device;
    if (device == nullptr) device = its;
    if (its == nullptr || its == device) continue;
    return ErrnoError(EINVAL,
                      absl::StrFormat("buffers of %s and of %s in one call: a stream belongs to one GPU",
                                      device->name(), its->name()));
  }
  if (buffers.empty()) return EnterStreamOf(*gpus, std::move(device), stream, nullptr);
  return EnterStreamOf(*gpus, std::move(device), stream, &buffers.front()->client()->connection());
}

StatusOr<std::shared_ptr<gpu::StreamOrder>> EnterStream(void* stream, const void* memory,
                                                        Connection& connection) {
  ASSIGN_OR_RETURN(const std::shared_ptr<gpu::Gpus> gpus, FindGpus());
  std::shared_ptr<gpu::Device> device;
  if (memory != nullptr) {
    ASSIGN_OR_RETURN(const gpu::MemoryInfo info, gpus->Classify(memory));
    device = info.device;
  }
  return EnterStreamOf(*gpus, std::move(device), stream, &connection);
}

void DescribeDevices(nacre_capabilities* capabilities) {
  const StatusOr<std::shared_ptr<gpu::Gpus>> gpus = FindGpus();
  if (!gpus.ok()) {
    CopyText(absl::StrFormat("none: %s", gpus.status().message()), capabilities->device,
             sizeof capabilities->device);
    return;
  }
  capabilities->gpus = (*gpus)->devices().size();
  capabilities->flags |= NACRE_CAN_READ_TO_DEVICE;
  std::string text;
  bool streams = true;
  for (const auto& device : (*gpus)->devices()) {
    text += absl::StrFormat("%s%s %s, verified by %s", text.empty() ? "" : "\n", device->name(),
                            device->info().name, device->verification());
    streams = streams && device->info().stream_memory_ops;
  }
  if (streams) capabilities->flags |= NACRE_CAN_USE_STREAMS;
  CopyText(text, capabilities->device, sizeof capabilities->device);
}

}  // namespace nacre::api
