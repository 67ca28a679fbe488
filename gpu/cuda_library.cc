#include "gpu/cuda_library.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <dlfcn.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "common/forks.h"

namespace nacre::gpu {
namespace {

constexpr char kDefaultLibrary[] = "libcuda.so.1";

std::string LibraryPath(std::string path) {
  if (!path.empty()) return path;
  const char* named = std::getenv("NACRE_CUDA_LIBRARY");
  return named != nullptr && *named != '\0' ? named : kDefaultLibrary;
}

// The driver's own look-up, which gives the function whose signature a CUDA version had.
using GetProcAddressV1 = CudaResult (*)(const char*, void**, int, uint64_t);
using GetProcAddressV2 = CudaResult (*)(const char*, void**, int, uint64_t, int*);

class SymbolFinder {
 public:
  explicit SymbolFinder(void* library)
      : library_(library),
        v2_(reinterpret_cast<GetProcAddressV2>(dlsym(library, "cuGetProcAddress_v2"))),
        v1_(reinterpret_cast<GetProcAddressV1>(dlsym(library, "cuGetProcAddress"))) {}

  // Null if the driver has it in neither way.
  void* Find(const char* symbol, int version) const {
    std::string base =
        symbol;  // the driver's look-up wants "cuMemAlloc" where the library has "cuMemAlloc_v2"
    if (size_t suffix = base.rfind("_v"); suffix != std::string::npos) base.resize(suffix);
    void* found = nullptr;
    if (v2_ != nullptr && v2_(base.c_str(), &found, version, 0, nullptr) == kCudaSuccess && found != nullptr)
      return found;
    if (v2_ == nullptr && v1_ != nullptr && v1_(base.c_str(), &found, version, 0) == kCudaSuccess &&
        found != nullptr)
      return found;
    return dlsym(library_, symbol);
  }

 private:
  void* const library_;
  const GetProcAddressV2 v2_;
  const GetProcAddressV1 v1_;
};

}  // namespace

std::string VersionText(int version) { return absl::StrFormat("%d.%d", version / 1000, version % 1000 / 10); }

CudaLibrary::CudaLibrary(std::string path) : path_(std::move(path)), pid_(getpid()), forks_(ForksSoFar()) {}

StatusOr<std::shared_ptr<const CudaLibrary>> CudaLibrary::Load(std::string path) {
  std::shared_ptr<CudaLibrary> library(new CudaLibrary(LibraryPath(std::move(path))));
  RETURN_IF_ERROR(library->Open());
  RETURN_IF_ERROR(library->FindFunctions());
  RETURN_IF_ERROR(library->Initialize());
  return library;
}

Status CudaLibrary::Open() {
  handle_ = dlopen(path_.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle_ != nullptr) return OkStatus();
  const char* why = dlerror();
  return ErrnoError(ENOENT,
                    absl::StrFormat("no CUDA driver: cannot open %s (%s); install NVIDIA's driver, or "
                                    "name its library in NACRE_CUDA_LIBRARY",
                                    path_, why != nullptr ? why : "no reason given"));
}

Status CudaLibrary::FindFunctions() {
  SymbolFinder finder(handle_);
  // First the version: it says best why anything else may be missing.
  auto get_version = reinterpret_cast<CudaResult (*)(int*)>(dlsym(handle_, "cuDriverGetVersion"));
  if (get_version == nullptr)
    return ErrnoError(ENOENT,
                      absl::StrFormat("%s is not a CUDA driver: it has no cuDriverGetVersion", path_));
  if (CudaResult result = get_version(&driver_version_); result != kCudaSuccess)
    return ErrnoError(ENODEV, absl::StrFormat("%s: cuDriverGetVersion failed with %d", path_, result));
  if (driver_version_ < kOldestDriver)
    return ErrnoError(ENOSYS,
                      absl::StrFormat("the CUDA driver is too old: %s is of version %s, needed is %s "
                                      "or newer; update NVIDIA's driver",
                                      path_, VersionText(driver_version_), VersionText(kOldestDriver)));
  const char* missing = nullptr;
#define NACRE_CUDA_FIND(name, symbol, version, needed, arguments)           \
  functions_.name = reinterpret_cast<CudaResult(*) arguments>(              \
      version <= driver_version_ ? finder.Find(symbol, version) : nullptr); \
  if ((needed) && functions_.name == nullptr && missing == nullptr) missing = symbol;
  NACRE_CUDA_FUNCTIONS(NACRE_CUDA_FIND)
#undef NACRE_CUDA_FIND
  if (missing == nullptr) return OkStatus();
  return ErrnoError(
      ENOSYS, absl::StrFormat("the CUDA driver %s (version %s) has no %s; update NVIDIA's driver", path_,
                              VersionText(driver_version_), missing));
}

Status CudaLibrary::Initialize() {
  CudaResult result = functions_.Init(0);
  if (result == kCudaSuccess) return OkStatus();
  std::string hint = result == kCudaNoDevice ? "this machine has no GPU that the driver may use (look at "
                                               "CUDA_VISIBLE_DEVICES and /dev/nvidia*)"
                                             : "try nvidia-smi, which tells more";
  return ErrnoError(ENODEV, absl::StrFormat("no GPU: %s; %s", Check(result, "cuInit").message(), hint));
}

Status CudaLibrary::Check(CudaResult result, std::string_view what) const {
  if (result == kCudaSuccess) return OkStatus();
  const char* name = nullptr;
  const char* text = nullptr;
  if (functions_.GetErrorName(result, &name) != kCudaSuccess || name == nullptr) name = "unknown error";
  if (functions_.GetErrorString(result, &text) != kCudaSuccess || text == nullptr) text = "no description";
  return ErrnoError(result == kCudaOutOfMemory ? ENOMEM : EIO,
                    absl::StrFormat("%s: %s (%d): %s", what, name, result, text));
}

// A library that stands in for the driver stands in for all of it.
std::string CudaLibrary::nvml_path() const { return path_ == kDefaultLibrary ? "libnvidia-ml.so.1" : path_; }

Status CudaLibrary::CheckProcess() const {
  if (ForksSoFar() == forks_) return OkStatus();
  return ErrnoError(
      EOWNERDEAD,
      absl::StrFormat("CUDA was initialised in process %d and does not survive a fork: open the GPUs "
                      "in this process (%d), or fork before",
                      pid_, getpid()));
}

}  // namespace nacre::gpu
