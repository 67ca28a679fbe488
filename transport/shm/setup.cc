#include "transport/shm/setup.h"

#include <absl/container/inlined_vector.h>
#include <absl/strings/str_format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

namespace nacre::shm {
namespace {

constexpr char kMagic[8] = {'N', 'A', 'C', 'S', 'H', 'M', 0, 1};  // the last is the version
constexpr uint32_t kRefused = 1;

// As the bytes lie on the wire. The regions' descriptors come with it, in their order.
struct WireSetup {
  char magic[8];
  uint32_t refused;
  uint32_t regions;
  uint64_t sizes[kMaxRegions];
};
static_assert(sizeof(WireSetup) == 16 + 8 * kMaxRegions);

using ControlBuffer = std::array<char, CMSG_SPACE(kMaxRegions * sizeof(int))>;

// Descriptors that have come and are closed again, whatever happens.
class Received {
 public:
  Received() = default;
  ~Received() {
    for (int fd : fds) ::close(fd);
  }
  Received(const Received&) = delete;
  Received& operator=(const Received&) = delete;

  absl::InlinedVector<int, kMaxRegions> fds;
};

Status Send(int socket, WireSetup* wire, std::span<const int> fds) {
  std::memcpy(wire->magic, kMagic, sizeof kMagic);
  iovec piece{wire, sizeof *wire};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  alignas(cmsghdr) ControlBuffer control{};
  if (!fds.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size_bytes());
  }
  const ssize_t sent = ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent == sizeof *wire) return OkStatus();
  const int error = sent < 0 ? errno : EPIPE;
  return ErrnoError(ECONNRESET, absl::StrFormat("cannot show memory: %s", std::strerror(error)));
}

void Collect(msghdr* message, Received* received) {
  for (cmsghdr* header = CMSG_FIRSTHDR(message); header != nullptr; header = CMSG_NXTHDR(message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof fd, sizeof fd);
      received->fds.push_back(fd);
    }
  }
}

Status CheckSetup(const WireSetup& wire, const Received& received) {
  if (std::memcmp(wire.magic, kMagic, sizeof kMagic) != 0) {
    return ErrnoError(EPROTO, "the other side does not speak this version of shared memory");
  }
  if (wire.refused != 0) {
    return ErrnoError(ENOTSUP,
                      "it shows its memory only to processes of its own user and of root that could read it "
                      "by themselves, as "
                      "those in containers could not");
  }
  if (wire.regions > kMaxRegions || wire.regions != received.fds.size()) {
    return ErrnoError(EPROTO, absl::StrFormat("%d regions of memory announced, %d came", wire.regions,
                                              received.fds.size()));
  }
  return OkStatus();
}

// EAGAIN: nothing has come yet.
StatusOr<Views> TryReceive(int socket, ShmMemory* memory) {
  WireSetup wire{};
  iovec piece{&wire, sizeof wire};
  alignas(cmsghdr) ControlBuffer control{};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t size = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  Received received;
  if (size > 0) Collect(&message, &received);
  if (size < 0) return ErrnoError(errno, std::strerror(errno));
  if (size == 0) return ErrnoError(ECONNRESET, "the other side closed the connection");
  if (size != sizeof wire || (message.msg_flags & MSG_CTRUNC) != 0) {
    return ErrnoError(
        EPROTO, absl::StrFormat("%d bytes came where a shared memory's setup has %d", size, sizeof wire));
  }
  RETURN_IF_ERROR(CheckSetup(wire, received));
  Views views;
  for (size_t i = 0; i < wire.regions; ++i) {
    ASSIGN_OR_RETURN(std::shared_ptr<const SharedView> view, memory->View(received.fds[i], wire.sizes[i]));
    views.push_back(std::move(view));
  }
  return views;
}

}  // namespace

Status SendSetup(int socket, const Shown& shown) {
  WireSetup wire{};
  absl::InlinedVector<int, kMaxRegions> fds;
  for (const auto& memory : shown) {
    wire.sizes[wire.regions++] = memory->size();
    fds.push_back(memory->fd());
  }
  return Send(socket, &wire, fds);
}

Status SendRefusal(int socket) {
  WireSetup wire{};
  wire.refused = kRefused;
  return Send(socket, &wire, {});
}

// A new socket may be reported readable without anything to read.
Task<StatusOr<Views>> ReceiveSetup(StreamSocket& socket, ShmMemory* memory) {
  for (;;) {
    auto wait = [&socket](auto done) { socket.async_wait(StreamSocket::wait_read, std::move(done)); };
    auto [error] = co_await Operation<boost::system::error_code>(wait);
    if (error) co_return ErrnoError(error.value(), error.message());
    StatusOr<Views> views = TryReceive(socket.native_handle(), memory);
    if (views.ok() || ToErrno(views.status()) != EAGAIN) co_return views;
  }
}

}  // namespace nacre::shm
