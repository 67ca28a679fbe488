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

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25  // since Linux 6.1
#endif

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

// Null: errno says why not.
std::byte* MapShared(int fd, size_t size, int protection) {
  const size_t room = size + (size < kLargePage ? 0 : kLargePage);
  void* reserved = ::mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return nullptr;
  auto* begin = static_cast<std::byte*>(reserved);
  std::byte* data = begin;
  if (room > size) data += (kLargePage - reinterpret_cast<uintptr_t>(begin) % kLargePage) % kLargePage;
  if (::mmap(data, size, protection, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
    const int error = errno;
    ::munmap(begin, room);
    errno = error;
    return nullptr;
  }
  const uintptr_t page = ::sysconf(_SC_PAGESIZE);
  std::byte* end = data + (size + page - 1) / page * page;
  if (data > begin) ::munmap(begin, data - begin);
  if (end < begin + room) ::munmap(end, begin + room - end);
  return data;
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
  std::byte* data = MapShared(fd, size, PROT_READ | PROT_WRITE);
  if (data == nullptr) {
    Status status = Failed("a mapping", size);
    ::close(fd);
    return status;
  }
  return std::shared_ptr<SharedMemory>(new SharedMemory(fd, data, size, Seal(fd)));
}

void SharedMemory::PreferLargePages() {
  (void)::madvise(data_, size_, MADV_HUGEPAGE);  // a kernel without them
}

// A large page's worth that holds nothing at all is not looked at by the kernel, so it is made to hold
// something.
Status SharedMemory::MakeLargePages(size_t begin, size_t end) {
  if (begin % kLargePage != 0 || end % kLargePage != 0 || begin > end || end > size_)
    return ErrnoError(
        EINVAL, absl::StrFormat("no large pages of memory of %d bytes are from %d to %d", size_, begin, end));
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  for (size_t at = begin; at < end; at += kLargePage) (void)::madvise(data_ + at, page, MADV_POPULATE_WRITE);
  if (::madvise(data_ + begin, end - begin, MADV_COLLAPSE) == 0) return OkStatus();
  const int error = errno == EINVAL ? ENOTSUP : errno;
  return ErrnoError(error, absl::StrFormat("madvise(MADV_COLLAPSE): %s", std::strerror(errno)));
}

SharedMemory::~SharedMemory() {
  ::munmap(data_, size_);
  ::close(fd_);
}

StatusOr<std::shared_ptr<const SharedView>> SharedView::Map(int fd, size_t size) {
  RETURN_IF_ERROR(CheckForeign(fd, size));
  const std::byte* data = MapShared(fd, size, PROT_READ);
  if (data == nullptr) return Failed("a view", size);
  return std::shared_ptr<const SharedView>(new SharedView(data, size));
}

bool SharedView::HasMemory(std::span<const std::byte> bytes) const {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  for (const std::byte* byte : {bytes.data(), bytes.data() + bytes.size() - 1}) {
    unsigned char there = 1;
    auto* begin = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(byte) / page * page);
    if (::mincore(begin, page, &there) == 0 && (there & 1) == 0) return false;
  }
  return true;
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
