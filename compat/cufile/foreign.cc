#include "compat/cufile/foreign.h"

#include <dlfcn.h>
#include <link.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "compat/cufile/log.h"

namespace nacre::cufile {
namespace {

// --- NVIDIA's library ---

int NoteDirectory(dl_phdr_info* info, size_t, void* directories) {
  const std::string_view path = info->dlpi_name == nullptr ? "" : info->dlpi_name;
  const size_t slash = path.rfind('/');
  if (slash == path.npos || path.substr(slash).find("cud") == path.npos) return 0;
  static_cast<std::set<std::string>*>(directories)->insert(std::string(path.substr(0, slash)));
  return 0;
}

std::vector<std::string> Candidates() {
  if (const char* named = std::getenv("NACRE_CUFILE_NVIDIA"); named != nullptr && *named != '\0') {
    if (std::string_view(named) == "none") return {};
    return {named};
  }
  std::set<std::string> directories;
  ::dl_iterate_phdr(NoteDirectory, &directories);
  if (const char* home = std::getenv("CUDA_HOME")) directories.insert(std::string(home) + "/lib64");
  for (const char* usual :
       {"/usr/local/cuda/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu"})
    directories.insert(usual);
  std::vector<std::string> candidates;
  for (const std::string& directory : directories) candidates.push_back(directory + "/libcufile.so.0");
  return candidates;
}

bool IsOurs(const std::string& path) {
  Dl_info us{};
  struct stat its {
  }, ours{};
  if (::dladdr(reinterpret_cast<void*>(&IsOurs), &us) == 0 || ::stat(us.dli_fname, &ours) != 0) return false;
  return ::stat(path.c_str(), &its) == 0 && its.st_dev == ours.st_dev && its.st_ino == ours.st_ino;
}

template <typename Function>
bool Find(void* library, const char* name, Function** function) {
  *function = reinterpret_cast<Function*>(::dlsym(library, name));
  return *function != nullptr;
}

// With its own symbols first, or its calls of itself would come to us.
const Nvidia* Load() {
  for (const std::string& path : Candidates()) {
    if (::access(path.c_str(), R_OK) != 0 || IsOurs(path)) continue;
    void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    if (library == nullptr) {
      Log("%s: %s", path.c_str(), ::dlerror());
      continue;
    }
    auto* found = new Nvidia;
    found->path = (new std::string(path))->c_str();
    const bool whole = Find(library, "cuFileHandleRegister", &found->handle_register) &&
                       Find(library, "cuFileHandleDeregister", &found->handle_deregister) &&
                       Find(library, "cuFileRead", &found->read) &&
                       Find(library, "cuFileWrite", &found->write) &&
                       Find(library, "cuFileReadAsync", &found->read_async) &&
                       Find(library, "cuFileWriteAsync", &found->write_async);
    if (whole) return found;
    Log("%s lacks functions of cuFile", path.c_str());
    delete found;
  }
  return nullptr;
}

// --- copies ---

// The functions of CUDA's driver for them; the process has loaded it, or has no device memory.
struct Driver {
  int (*attributes)(unsigned, int*, void**, unsigned long long) = nullptr;
  int (*to_device)(unsigned long long, const void*, size_t, void*) = nullptr;
  int (*to_host)(void*, unsigned long long, size_t, void*) = nullptr;
  int (*synchronize)(void*) = nullptr;
  int (*push)(void*) = nullptr;
  int (*pop)(void**) = nullptr;
  int (*retain_primary)(void**, int) = nullptr;
  int (*release_primary)(int) = nullptr;

  static const Driver& Get() {
    static const Driver& driver = *new Driver(Open());
    return driver;
  }

  bool IsDevice(const void* memory) const {
    constexpr int kMemoryType = 2, kDevice = 2;
    if (attributes == nullptr) return false;
    unsigned type = 0;
    int asked = kMemoryType;
    void* answer = &type;
    return attributes(1, &asked, &answer, reinterpret_cast<uintptr_t>(memory)) == 0 && type == kDevice;
  }
  bool ToDevice(void* to, const void* from, size_t size) const {
    return to_device(reinterpret_cast<uintptr_t>(to), from, size, nullptr) == 0 && synchronize(nullptr) == 0;
  }
  bool ToHost(void* to, const void* from, size_t size) const {
    return to_host(to, reinterpret_cast<uintptr_t>(from), size, nullptr) == 0 && synchronize(nullptr) == 0;
  }

 private:
  static Driver Open() {
    Driver driver;
    const char* named = std::getenv("NACRE_CUDA_LIBRARY");
    void* library = ::dlopen(named != nullptr ? named : "libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (library == nullptr) return driver;
    const bool whole = Find(library, "cuPointerGetAttributes", &driver.attributes) &&
                       Find(library, "cuMemcpyHtoDAsync_v2", &driver.to_device) &&
                       Find(library, "cuMemcpyDtoHAsync_v2", &driver.to_host) &&
                       Find(library, "cuStreamSynchronize", &driver.synchronize) &&
                       Find(library, "cuCtxPushCurrent_v2", &driver.push) &&
                       Find(library, "cuCtxPopCurrent_v2", &driver.pop) &&
                       Find(library, "cuDevicePrimaryCtxRetain", &driver.retain_primary) &&
                       Find(library, "cuDevicePrimaryCtxRelease_v2", &driver.release_primary);
    return whole ? driver : Driver();
  }
};

// While it lives, the context of some device memory is the thread's current one: a thread that has none, or
// another GPU's, reads and writes like any other. Memory that is of no context in particular (mapped, or of a
// pool) has its device's primary one.
class UseContextOf {
 public:
  UseContextOf(const Driver& driver, const void* memory) : driver_(driver) {
    int asked[] = {kContext, kOrdinal};
    void* answers[] = {&context_, &ordinal_};
    if (driver.attributes(2, asked, answers, reinterpret_cast<uintptr_t>(memory)) != 0) return;
    if (context_ == nullptr) is_retained_ = driver.retain_primary(&context_, ordinal_) == 0;
    is_current_ = context_ != nullptr && driver.push(context_) == 0;
  }
  ~UseContextOf() {
    if (is_current_) driver_.pop(&context_);
    if (is_retained_) driver_.release_primary(ordinal_);
  }
  UseContextOf(const UseContextOf&) = delete;
  UseContextOf& operator=(const UseContextOf&) = delete;

  bool is_current() const { return is_current_; }

 private:
  static constexpr int kContext = 1, kOrdinal = 9;  // attributes of an address

  const Driver& driver_;
  void* context_ = nullptr;
  int ordinal_ = -1;
  bool is_retained_ = false;
  bool is_current_ = false;
};

constexpr size_t kStep = 4 << 20;

// Until it is done or there is no more. `transfer(done, left)`: one step; 0: the end, -1: errno.
template <typename Step>
ssize_t InSteps(size_t size, Step step) {
  size_t done = 0;
  while (done < size) {
    const ssize_t some = step(done, std::min(size - done, kStep));
    if (some < 0 && errno == EINTR) continue;
    if (some < 0) return -1;
    if (some == 0) break;
    done += static_cast<size_t>(some);
  }
  return static_cast<ssize_t>(done);
}

ssize_t CopyRefused() {
  errno = EIO;
  return -1;
}

}  // namespace

const Nvidia* Nvidia::Get() {
  static const Nvidia* const found = Load();
  return found;
}

ssize_t ReadByCopy(int fd, void* memory, size_t size, off_t offset) {
  const Driver& driver = Driver::Get();
  auto* to = static_cast<char*>(memory);
  if (!driver.IsDevice(memory)) {
    return InSteps(size, [&](size_t done, size_t some) {
      return ::pread(fd, to + done, some, offset + static_cast<off_t>(done));
    });
  }
  const UseContextOf use(driver, memory);
  if (!use.is_current()) return CopyRefused();
  std::vector<char> staged(std::min(size, kStep));
  return InSteps(size, [&](size_t done, size_t some) -> ssize_t {
    const ssize_t got = ::pread(fd, staged.data(), some, offset + static_cast<off_t>(done));
    if (got > 0 && !driver.ToDevice(to + done, staged.data(), static_cast<size_t>(got))) return CopyRefused();
    return got;
  });
}

ssize_t WriteByCopy(int fd, const void* memory, size_t size, off_t offset) {
  const Driver& driver = Driver::Get();
  const auto* from = static_cast<const char*>(memory);
  if (!driver.IsDevice(memory)) {
    return InSteps(size, [&](size_t done, size_t some) {
      return ::pwrite(fd, from + done, some, offset + static_cast<off_t>(done));
    });
  }
  const UseContextOf use(driver, memory);
  if (!use.is_current()) return CopyRefused();
  std::vector<char> staged(std::min(size, kStep));
  return InSteps(size, [&](size_t done, size_t some) -> ssize_t {
    if (!driver.ToHost(staged.data(), from + done, some)) return CopyRefused();
    return ::pwrite(fd, staged.data(), some, offset + static_cast<off_t>(done));
  });
}

}  // namespace nacre::cufile
