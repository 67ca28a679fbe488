// Device memory as a file descriptor that a NIC's driver can map (ibv_reg_dmabuf_mr): what was asked for
// begins at `offset` in it, and its address there (iova) is the device's. Closed at destruction; what was
// registered with it stays. Not thread-safe.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace nacre {

class DmaBuf {
 public:
  DmaBuf(int fd, uint64_t offset, std::span<const std::byte> memory)
      : fd_(fd), offset_(offset), memory_(memory) {}
  DmaBuf(DmaBuf&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), offset_(other.offset_), memory_(other.memory_) {}
  DmaBuf& operator=(DmaBuf&& other) noexcept {
    std::swap(fd_, other.fd_);
    offset_ = other.offset_;
    memory_ = other.memory_;
    return *this;
  }
  ~DmaBuf() {
    if (fd_ >= 0) close(fd_);
  }

  int fd() const { return fd_; }
  uint64_t offset() const { return offset_; }
  uint64_t address() const { return reinterpret_cast<uint64_t>(memory_.data()); }
  size_t size() const { return memory_.size(); }

 private:
  int fd_;
  uint64_t offset_;
  std::span<const std::byte> memory_;
};

}  // namespace nacre
