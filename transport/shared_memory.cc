#include "transport/shared_memory.h"

#include <absl/strings/str_format.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace nacre {
namespace {

// After these only mappings that exist already can write.
constexpr int kSeals = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE;

Status Failed(const char* what, size_t size) {
  return ErrnoError(errno,
                    absl::StrFormat("%s of %d bytes of shared memory: %s", what, size, std::strerror(errno)));
}

Status Seal(int fd) {
  if (::fcntl(fd, F_ADD_SEALS, kSeals) == 0) return OkStatus();
  return ErrnoError(ENOTSUP,
                    absl::StrFormat("the kernel cannot seal shared memory: %s", std::strerror(errno)));
}

Status CheckForeign(int fd, size_t size) {
  struct stat info;
  struct statfs filesystem;
  if (::fstat(fd, &info) != 0 || ::fstatfs(fd, &filesystem) != 0) {
    return ErrnoError(
        EPROTO, absl::StrFormat("what came as shared memory cannot be looked at: %s", std::strerror(errno)));
  }
  // Only of tmpfs: the pages of other filesystems may fail to come.
  if (!S_ISREG(info.st_mode) || filesystem.f_type != TMPFS_MAGIC) {
    return ErrnoError(EPROTO, "what came as shared memory is none");
  }
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return ErrnoError(EPROTO, "the shared memory that came could be cut off: it is not sealed");
  }
  if (size > 0 && static_cast<uint64_t>(info.st_size) == size) return OkStatus();
  return ErrnoError(EPROTO, absl::StrFormat("the shared memory that came has %d bytes, not the %d announced",
                                            info.st_size, size));
}

}  // namespace

StatusOr<std::shared_ptr<SharedMemory>> SharedMemory::Create(const std::string& name, size_t size) {
  const int fd = ::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return Failed("memfd", size);
  if (::ftruncate(fd, static_cast<off_t>(size)) != 0) {
    Status status = Failed("a memfd", size);
    ::close(fd);
    return status;
  }
  void* data = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) {
    Status status = Failed("a mapping", size);
    ::close(fd);
    return status;
  }
  return std::shared_ptr<SharedMemory>(new SharedMemory(fd, static_cast<std::byte*>(data), size, Seal(fd)));
}

void SharedMemory::PreferLargePages() {
  (void)::madvise(data_, size_, MADV_HUGEPAGE);  // a kernel without them
}

SharedMemory::~SharedMemory() {
  ::munmap(data_, size_);
  ::close(fd_);
}

StatusOr<std::shared_ptr<const SharedView>> SharedView::Map(int fd, size_t size) {
  RETURN_IF_ERROR(CheckForeign(fd, size));
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) return Failed("a view", size);
  return std::shared_ptr<const SharedView>(new SharedView(static_cast<const std::byte*>(data), size));
}

SharedView::~SharedView() { ::munmap(const_cast<std::byte*>(data_), size_); }

StatusOr<SharedMemoryId> IdentifySharedMemory(int fd) {
  struct stat info;
  if (::fstat(fd, &info) != 0) {
    return ErrnoError(
        EPROTO, absl::StrFormat("what came as shared memory cannot be looked at: %s", std::strerror(errno)));
  }
  return SharedMemoryId{info.st_dev, info.st_ino};
}

}  // namespace nacre
