#include "fuse/init_reply.h"

#include <linux/fuse.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "fuse/libfuse.h"
#include "fuse/session.h"

namespace nacre::fuse {
namespace {

// Shared mappings of files that are open past the page cache (Linux 6.6).
constexpr uint64_t kDirectIoAllowMmap = uint64_t{1} << 36;

// The setuid and setgid bits are ours to take at write, truncate and chown: the kernel need not ask for
// security.capability before each write.
constexpr uint64_t kWanted = FUSE_HANDLE_KILLPRIV_V2 | kDirectIoAllowMmap;

ssize_t ReadRequest(int fd, void* buffer, size_t size, void* userdata) {
  ssize_t got = ::read(fd, buffer, size);
  if (got > 0) static_cast<Session*>(userdata)->init_reply().SawRequest(buffer, static_cast<size_t>(got));
  return got;
}

ssize_t WriteAnswer(int fd, iovec* pieces, int count, void* userdata) {
  static_cast<Session*>(userdata)->init_reply().SeesAnswer(pieces, count);
  return ::writev(fd, pieces, count);
}

}  // namespace

Status InitReply::Attach(fuse_session* session) {
  fuse_custom_io io{};
  io.read = ReadRequest;
  io.writev = WriteAnswer;
  int result = fuse_session_custom_io(session, &io, fuse_session_fd(session));
  return result == 0 ? OkStatus() : ErrnoError(-result, "libfuse refuses custom I/O");
}

void InitReply::SawRequest(const void* request, size_t size) {
  if (done_.load(std::memory_order_acquire)) return;
  fuse_in_header header;
  fuse_init_in init{};
  if (size < sizeof header) return;
  std::memcpy(&header, request, sizeof header);
  if (header.opcode != FUSE_INIT) return;
  std::memcpy(&init, static_cast<const char*>(request) + sizeof header,
              std::min(sizeof init, size - sizeof header));
  unique_ = header.unique;
  offered_ = init.flags;
  if (init.flags & FUSE_INIT_EXT) offered_ |= uint64_t{init.flags2} << 32;
}

void InitReply::SeesAnswer(iovec* pieces, int count) {
  if (done_.load(std::memory_order_acquire)) return;
  fuse_out_header header;
  if (count < 2 || pieces[0].iov_len < sizeof header || pieces[1].iov_len < sizeof(fuse_init_out)) return;
  std::memcpy(&header, pieces[0].iov_base, sizeof header);
  if (header.unique != unique_ || header.error != 0) return;
  auto* answer = static_cast<fuse_init_out*>(pieces[1].iov_base);
  uint64_t wanted = kWanted & offered_;
  if (decline_direct_maps_) wanted &= ~kDirectIoAllowMmap;
  direct_files_map_.store((wanted & kDirectIoAllowMmap) != 0, std::memory_order_release);
  answer->flags |= static_cast<uint32_t>(wanted) | (offered_ & FUSE_INIT_EXT);
  answer->flags2 |= static_cast<uint32_t>(wanted >> 32);
  done_.store(true, std::memory_order_release);
}

}  // namespace nacre::fuse
