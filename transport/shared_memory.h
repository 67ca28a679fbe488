// Memory that other processes can be let see, and the sight of theirs. It is a memfd, sealed so that only its
// maker, through the mapping made here, can ever write into it, and so that nobody can shrink it under a
// reader (who would be killed by SIGBUS). Immutable after construction, hence thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "common/status.h"

namespace nacre {

// Of the processors that we know. Memory of this size and views of it begin at a multiple of it, as
// addresses, or no large page could be mapped there.
constexpr size_t kLargePage = 2 << 20;

// Identifies a memfd while anybody has it open.
struct SharedMemoryId {
  uint64_t device = 0;
  uint64_t inode = 0;

  auto operator<=>(const SharedMemoryId&) const = default;
};

// One's own: zeroed, writable. `name` is for /proc/PID/maps.
class SharedMemory {
 public:
  static StatusOr<std::shared_ptr<SharedMemory>> Create(const std::string& name, size_t size);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  int fd() const { return fd_; }

  // Large pages: first use and registration with devices take a third of the time. For much memory that is
  // used densely.
  //
  // The kernel gives them by itself where it is asked for them and the system's setting for shared memory is
  // "advise" or "always" (/sys/kernel/mm/transparent_hugepage/shmem_enabled).
  void PreferLargePages();
  // Makes large pages of these bytes, with that setting and without, and whatever they hold. Both are
  // multiples of kLargePage. It takes 0.1 to 0.3 s for a GiB, and milliseconds however little it is, since
  // the kernel waits for all processors first. ENOTSUP: the kernel does not do that (before Linux 6.1). Other
  // errors, such as ENOMEM, may be different another time, and some of the pages may have been made.
  Status MakeLargePages(size_t begin, size_t end);

  // Why it may not be shown to others after all: a kernel that has not all the seals (before Linux 5.1).
  const Status& shareable() const { return shareable_; }

 private:
  SharedMemory(int fd, std::byte* data, size_t size, Status shareable)
      : fd_(fd), data_(data), size_(size), shareable_(std::move(shareable)) {}

  const int fd_;
  std::byte* const data_;
  const size_t size_;
  const Status shareable_;
};

// Somebody else's, read-only.
class SharedView {
 public:
  // INVALID_ARGUMENT: not a memfd that is sealed as above and has this size. Does not keep the descriptor.
  static StatusOr<std::shared_ptr<const SharedView>> Map(int fd, size_t size);
  ~SharedView();
  SharedView(const SharedView&) = delete;
  SharedView& operator=(const SharedView&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }

  // Whether there is memory where these bytes begin and where they end, as far as the kernel tells: true if
  // it does not. A page that has never been written to has none, and gets some when it is looked at.
  bool HasMemory(std::span<const std::byte> bytes) const;

 private:
  SharedView(const std::byte* data, size_t size) : data_(data), size_(size) {}

  const std::byte* const data_;
  const size_t size_;
};

StatusOr<SharedMemoryId> IdentifySharedMemory(int fd);

}  // namespace nacre
