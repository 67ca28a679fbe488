#include "compat/cufile/state.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstring>
#include <string>
#include <vector>

#include "compat/cufile/foreign.h"
#include "compat/cufile/log.h"
#include "compat/cufile/transfer.h"

namespace nacre::cufile {
namespace {

std::string NameOf(int fd) {
  char name[PATH_MAX];
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t length = ::readlink(link.c_str(), name, sizeof name);
  return length < 0 ? link : std::string(name, static_cast<size_t>(length));
}

class NacreFile : public File {
 public:
  NacreFile(nacre_client client, nacre_file file, std::string name)
      : client_(client), file_(file), name_(std::move(name)) {}
  ~NacreFile() override {
    if (const int error = nacre_file_close(file_); error != 0)
      Log("%s: closing: %s", name_.c_str(), nacre_error_message());
  }

  ssize_t Read(void* base, off_t memory_offset, size_t size, off_t offset) override {
    return Transfer(false, base, memory_offset, size, offset);
  }
  ssize_t Write(const void* base, off_t memory_offset, size_t size, off_t offset) override {
    return Transfer(true, const_cast<void*>(base), memory_offset, size, offset);
  }
  const CUfileError_t* Async(bool, void*, size_t*, off_t*, off_t*, ssize_t*, CUstream,
                             CUfileError_t*) override {
    return nullptr;
  }
  nacre_file handle() const override { return file_; }
  nacre_client client() const override { return client_; }

 private:
  ssize_t Transfer(bool writes, void* base, off_t memory_offset, size_t size, off_t offset) {
    const nacre_extent extent = ExtentOf(file_, base, memory_offset, size, offset);
    nacre_result result = NACRE_RESULT_INIT;
    int error =
        writes ? nacre_writev(&extent, 1, nullptr, &result) : nacre_readv(&extent, 1, nullptr, &result);
    if (error == 0 && writes && is_synchronous()) error = nacre_file_sync(file_);
    if (error != 0) {
      Log("%s: %s %zu bytes at %lld: %s", name_.c_str(), writes ? "writing" : "reading", size,
          static_cast<long long>(offset), nacre_error_message());
      errno = error;
      return -1;
    }
    if (!writes && !told_path_.exchange(true)) Log("%s: bytes come over %s", name_.c_str(), result.path);
    return static_cast<ssize_t>(result.bytes);
  }

  const nacre_client client_;
  const nacre_file file_;
  const std::string name_;
  std::atomic<bool> told_path_{false};
};

class NvidiaFile : public File {
 public:
  NvidiaFile(const Nvidia& nvidia, CUfileHandle_t handle) : nvidia_(nvidia), handle_(handle) {}
  ~NvidiaFile() override { nvidia_.handle_deregister(handle_); }

  ssize_t Read(void* base, off_t memory_offset, size_t size, off_t offset) override {
    return nvidia_.read(handle_, base, size, offset, memory_offset);
  }
  ssize_t Write(const void* base, off_t memory_offset, size_t size, off_t offset) override {
    return nvidia_.write(handle_, base, size, offset, memory_offset);
  }
  const CUfileError_t* Async(bool writes, void* base, size_t* size, off_t* offset, off_t* memory_offset,
                             ssize_t* done, CUstream stream, CUfileError_t* answer) override {
    const auto call = writes ? nvidia_.write_async : nvidia_.read_async;
    *answer = call(handle_, base, size, offset, memory_offset, done, stream);
    return answer;
  }

 private:
  const Nvidia& nvidia_;
  const CUfileHandle_t handle_;
};

class CopiedFile : public File {
 public:
  // Where the program's descriptor has O_DIRECT, which wants everything aligned, the file has one of its own.
  CopiedFile(int descriptor, const std::string& name) : used_(descriptor) {
    const int flags = ::fcntl(descriptor, F_GETFL);
    if ((flags & O_DIRECT) == 0) return;
    const std::string path = "/proc/self/fd/" + std::to_string(descriptor);
    own_ = ::open(path.c_str(), (flags & (O_ACCMODE | O_SYNC | O_DSYNC)) | O_CLOEXEC);
    if (own_ >= 0) used_ = own_;
    if (own_ < 0) Log("%s: opening without O_DIRECT: %s", name.c_str(), std::strerror(errno));
  }
  ~CopiedFile() override {
    if (own_ >= 0) ::close(own_);
  }

  ssize_t Read(void* base, off_t memory_offset, size_t size, off_t offset) override {
    return ReadByCopy(used_, static_cast<char*>(base) + memory_offset, size, offset);
  }
  ssize_t Write(const void* base, off_t memory_offset, size_t size, off_t offset) override {
    return WriteByCopy(used_, static_cast<const char*>(base) + memory_offset, size, offset);
  }
  const CUfileError_t* Async(bool, void*, size_t*, off_t*, off_t*, ssize_t*, CUstream,
                             CUfileError_t* answer) override {
    *answer = Answer(kAsyncNotSupported);
    return answer;
  }

 private:
  int used_;
  int own_ = -1;
};

FilePtr MakeForeign(const CUfileDescr_t& descriptor, const std::string& name) {
  if (const Nvidia* nvidia = Nvidia::Get()) {
    CUfileDescr_t copy = descriptor;
    CUfileHandle_t handle = nullptr;
    const CUfileError_t registered = nvidia->handle_register(&handle, &copy);
    const int error = static_cast<int>(registered.err);
    if (error == kSuccess) {
      Log("%s: not on a Nacre mount: %s", name.c_str(), nvidia->path);
      return std::make_shared<NvidiaFile>(*nvidia, handle);
    }
    Log("%s: not on a Nacre mount, and %s refuses it: error %d", name.c_str(), nvidia->path, error);
  }
  Log("%s: not on a Nacre mount: pread and a copy", name.c_str());
  return std::make_shared<CopiedFile>(descriptor.handle.fd, name);
}

}  // namespace

State& State::Get() {
  static State& state = *new State;
  return state;
}

// --- the driver ---

void State::Open() {
  std::lock_guard lock(mutex_);
  ++opens_;
  was_open_ = false;
}

void State::OpenIfNobodyHas() {
  std::lock_guard lock(mutex_);
  if (opens_ == 0) ++opens_;
  was_open_ = false;
}

CUfileError_t State::Close() {
  std::map<CUfileHandle_t, FilePtr> files;  // closed outside of the mutex
  std::map<const void*, size_t> memory;
  std::lock_guard lock(mutex_);
  if (opens_ == 0) return Answer(kDriverNotInitialized);
  if (--opens_ > 0) return Answer(kSuccess);
  was_open_ = true;
  for (const auto& [handle, file] : files_) gone_.insert(handle);
  files.swap(files_);
  memory.swap(memory_);
  return Answer(kSuccess);
}

long State::use_count() {
  std::lock_guard lock(mutex_);
  return opens_;
}

// --- files ---

int State::OpenOnMount(int fd, dev_t device, nacre_client* client, nacre_file* file) {
  std::lock_guard lock(connecting_);
  if (auto known = clients_.find(device); known != clients_.end()) {
    *client = known->second;
    const int error = nacre_file_from_fd(*client, fd, file);
    if (error != EXDEV && error != ENOTSUP) return error;
    clients_.erase(known);  // another mount has that number now; who reads through the old one goes on
  }
  nacre_client_options options = NACRE_CLIENT_OPTIONS_INIT;
  options.name = "cufile";
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  if (const int error = nacre_client_from_path(path.c_str(), &options, client); error != 0) return error;
  clients_[device] = *client;
  return nacre_file_from_fd(*client, fd, file);
}

CUfileError_t State::Register(const CUfileDescr_t& descriptor, CUfileHandle_t* handle) {
  if (descriptor.type != kOpaqueFd) return Answer(kIoNotSupported);
  const int fd = descriptor.handle.fd;
  struct stat attributes {};
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || ::fstat(fd, &attributes) != 0) return Answer(kInvalidValue);
  if (!S_ISREG(attributes.st_mode) && !S_ISBLK(attributes.st_mode)) return Answer(kInvalidFileType);
  if ((flags & O_APPEND) != 0) return Answer(kInvalidFileOpenFlag);
  {
    std::lock_guard lock(mutex_);
    for (const auto& [other, file] : files_)
      if (file->fd == fd) return Answer(kHandleAlreadyRegistered);
  }
  const std::string name = NameOf(fd);
  FilePtr file;
  nacre_client client{};
  nacre_file opened{};
  const int error =
      S_ISREG(attributes.st_mode) ? OpenOnMount(fd, attributes.st_dev, &client, &opened) : ENOTSUP;
  if (error == 0) {
    Log("%s: Nacre", name.c_str());
    file = std::make_shared<NacreFile>(client, opened, name);
  } else if (error == ENOTSUP) {
    file = MakeForeign(descriptor, name);
  } else {
    Log("%s: %s", name.c_str(), nacre_error_message());
    return Answer(error == EACCES || error == EPERM ? kPermissionDenied : kIoNotSupported);
  }
  file->fd = fd;
  file->flags = flags;
  std::lock_guard lock(mutex_);
  last_handle_ += 16;  // never the same again: one that is gone is known
  *handle = reinterpret_cast<CUfileHandle_t>(last_handle_);
  files_[*handle] = std::move(file);
  return Answer(kSuccess);
}

void State::Deregister(CUfileHandle_t handle) {
  FilePtr gone;  // closed outside of the mutex, when nobody uses it any more
  std::lock_guard lock(mutex_);
  auto it = files_.find(handle);
  if (it == files_.end()) return;
  gone = std::move(it->second);
  files_.erase(it);
  gone_.insert(handle);
}

FilePtr State::Find(CUfileHandle_t handle) {
  std::lock_guard lock(mutex_);
  auto it = files_.find(handle);
  return it == files_.end() ? nullptr : it->second;
}

bool State::WasDeregistered(CUfileHandle_t handle) {
  std::lock_guard lock(mutex_);
  return gone_.contains(handle);
}

// --- memory ---

CUfileError_t State::RegisterMemory(const void* base, size_t size) {
  if (base == nullptr || size == 0) return Answer(kInvalidValue);
  std::lock_guard lock(mutex_);
  return Answer(memory_.emplace(base, size).second ? kSuccess : kMemoryAlreadyRegistered);
}

CUfileError_t State::DeregisterMemory(const void* base) {
  if (base == nullptr) return Answer(kInvalidValue);
  std::lock_guard lock(mutex_);
  if (opens_ == 0) return Answer(was_open_ ? kDriverClosing : kDriverNotInitialized);
  return Answer(memory_.erase(base) == 0 ? kMemoryNotRegistered : kSuccess);
}

bool State::Fits(const void* base, off_t offset, size_t size) {
  std::lock_guard lock(mutex_);
  auto it = memory_.find(base);
  if (it == memory_.end()) return true;
  const size_t begin = static_cast<size_t>(offset);
  return begin <= it->second && size <= it->second - begin;
}

}  // namespace nacre::cufile
