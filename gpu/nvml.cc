#include "gpu/nvml.h"

#include <absl/strings/str_format.h>
#include <dlfcn.h>

#include <cerrno>

namespace nacre::gpu {
namespace {

using NvmlResult = int;  // 0: done
struct NvmlDevice;
struct NvmlBar1Memory {
  unsigned long long total = 0, free = 0, used = 0;
};

// Closed with the object, as NVML allows.
class NvmlLibrary {
 public:
  explicit NvmlLibrary(const std::string& path) : handle_(::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {}
  ~NvmlLibrary() {
    if (handle_ != nullptr) ::dlclose(handle_);
  }
  NvmlLibrary(const NvmlLibrary&) = delete;
  NvmlLibrary& operator=(const NvmlLibrary&) = delete;

  template <typename Function>
  Function* Find(const char* name) const {
    return handle_ == nullptr ? nullptr : reinterpret_cast<Function*>(::dlsym(handle_, name));
  }

 private:
  void* const handle_;
};

}  // namespace

StatusOr<uint64_t> Bar1Bytes(const std::string& library, const std::string& pci_bus_id) {
  const NvmlLibrary nvml(library);
  const auto init = nvml.Find<NvmlResult()>("nvmlInit_v2");
  const auto shutdown = nvml.Find<NvmlResult()>("nvmlShutdown");
  const auto find = nvml.Find<NvmlResult(const char*, NvmlDevice**)>("nvmlDeviceGetHandleByPciBusId_v2");
  const auto bar1 = nvml.Find<NvmlResult(NvmlDevice*, NvmlBar1Memory*)>("nvmlDeviceGetBAR1MemoryInfo");
  if (init == nullptr || shutdown == nullptr || find == nullptr || bar1 == nullptr)
    return ErrnoError(ENOENT, absl::StrFormat("%s is no NVML that tells of BAR1", library));
  if (NvmlResult result = init(); result != 0)
    return ErrnoError(EIO, absl::StrFormat("nvmlInit_v2 failed with %d", result));
  NvmlDevice* device = nullptr;
  NvmlBar1Memory memory;
  NvmlResult result = find(pci_bus_id.c_str(), &device);
  if (result == 0) result = bar1(device, &memory);
  shutdown();
  if (result == 0) return memory.total;
  return ErrnoError(EIO, absl::StrFormat("NVML does not tell the BAR1 of %s: %d", pci_bus_id, result));
}

}  // namespace nacre::gpu
