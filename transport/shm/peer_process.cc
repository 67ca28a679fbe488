#include "transport/shm/peer_process.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_split.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

namespace nacre::shm {
namespace {

constexpr int kPeerPidFd = 77;  // SO_PEERPIDFD, since Linux 6.5

Status Unknown(const char* what, int error) {
  return ErrnoError(EACCES, absl::StrFormat("%s is not known: %s", what, std::strerror(error)));
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  const int fd_;
};

StatusOr<std::string> ReadAt(int directory, const char* name) {
  const Descriptor file(::openat(directory, name, O_RDONLY | O_CLOEXEC));
  std::string text;
  std::array<char, 4096> part;
  ssize_t size = -1;  // also if it cannot be opened
  while (file.get() >= 0 && (size = ::read(file.get(), part.data(), part.size())) > 0)
    text.append(part.data(), static_cast<size_t>(size));
  if (size < 0) return Unknown("what /proc says of a process", errno);
  return text;
}

StatusOr<ProcessTraits> ReadTraits(const std::string& process) {
  const Descriptor directory(::open(process.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (directory.get() < 0) return Unknown(process.c_str(), errno);
  ASSIGN_OR_RETURN(const std::string status, ReadAt(directory.get(), "status"));
  ASSIGN_OR_RETURN(std::string users, ReadAt(directory.get(), "uid_map"));
  return ProcessTraits::Parse(status, std::move(users));
}

uid_t OverflowUser() {
  constexpr uid_t kUsual = 65534;
  const StatusOr<std::string> text = ReadAt(AT_FDCWD, "/proc/sys/kernel/overflowuid");
  uid_t user = kUsual;
  return text.ok() && absl::SimpleAtoi(*text, &user) ? user : kUsual;
}

// The rest of the line that begins with this; empty: there is none.
std::string_view LineOf(std::string_view text, std::string_view name) {
  const size_t found = text.find(name);
  if (found == std::string_view::npos || (found > 0 && text[found - 1] != '\n')) return {};
  const size_t begin = found + name.size();
  return text.substr(begin, text.find('\n', begin) - begin);
}

// A process's number may be another's by now: with a descriptor of the process itself, that it lives after
// all has been read says that it was read of this one. Older kernels have none; then the socket, which is
// new, must do.
bool HasEnded(int pidfd) {
  pollfd ended{pidfd, POLLIN, 0};
  return pidfd >= 0 && ::poll(&ended, 1, 0) != 0;
}

struct OtherEnd {
  ucred user{};
  ProcessTraits traits, own;
};

StatusOr<OtherEnd> Look(int socket) {
  OtherEnd peer;
  socklen_t size = sizeof peer.user;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer.user, &size) != 0)
    return Unknown("the other side's user", errno);
  RETURN_IF_ERROR(CheckUserId(peer.user.uid, ::geteuid(), OverflowUser()));
  if (peer.user.pid <= 0)
    return ErrnoError(EACCES, "the other side runs in a pid namespace that cannot be seen from here");
  int pidfd = -1;
  size = sizeof pidfd;
  const bool has_pidfd = ::getsockopt(socket, SOL_SOCKET, kPeerPidFd, &pidfd, &size) == 0;
  const int error = has_pidfd ? 0 : errno;
  const Descriptor process(has_pidfd ? pidfd : -1);
  if (error != 0 && error != ENOPROTOOPT) return Unknown("the other side's process", error);
  ASSIGN_OR_RETURN(peer.traits, ReadTraits(absl::StrFormat("/proc/%d", peer.user.pid)));
  if (HasEnded(process.get())) return ErrnoError(EACCES, "the other side's process has ended");
  ASSIGN_OR_RETURN(peer.own, ReadTraits("/proc/self"));
  return peer;
}

Status OfProcess(const OtherEnd& peer, Status status) {
  if (status.ok()) return status;
  return ErrnoError(EACCES, absl::StrFormat("process %d %s", peer.user.pid, status.message()));
}

}  // namespace

StatusOr<ProcessTraits> ProcessTraits::Parse(const std::string& status, std::string users) {
  ProcessTraits traits;
  traits.users = std::move(users);
  const std::string_view numbers = LineOf(status, "NStgid:"), capabilities = LineOf(status, "CapPrm:");
  const std::vector<std::string> in_namespaces =
      absl::StrSplit(AbslView(numbers), absl::ByAnyChar("\t "), absl::SkipEmpty());
  if (in_namespaces.empty() || !absl::SimpleHexAtoi(AbslView(capabilities), &traits.capabilities)) {
    return ErrnoError(EACCES, "what /proc says of a process lacks its namespaces or its capabilities");
  }
  traits.same_pid_namespace = in_namespaces.size() == 1;
  return traits;
}

Status CheckUserId(uid_t other, uid_t own, uid_t overflow) {
  if (other == overflow) {
    return ErrnoError(EACCES, absl::StrFormat("the other side runs as user %d, which stands for all that "
                                              "have no number here",
                                              other));
  }
  if (other == 0 || other == own) return OkStatus();
  return ErrnoError(
      EACCES, absl::StrFormat("the other side runs as user %d, neither root nor %d, whose memory this is",
                              other, own));
}

Status CheckNamespaces(const ProcessTraits& other, const ProcessTraits& own) {
  if (!own.same_pid_namespace)
    return ErrnoError(EACCES, "cannot be told apart from others: /proc is another's");
  if (other.users != own.users)
    return ErrnoError(EACCES, "runs in another user namespace, whose users are others");
  if (other.same_pid_namespace) return OkStatus();
  return ErrnoError(EACCES,
                    "runs in another pid namespace, as in a container, and could not read this memory "
                    "by itself");
}

// As the kernel has it, and without what a security module may add.
Status CheckCapabilities(const ProcessTraits& other, const ProcessTraits& own, bool same_user) {
  const bool traces = (other.capabilities >> CAP_SYS_PTRACE & 1) != 0;
  const bool has_ours = (own.capabilities & ~other.capabilities) == 0;
  if (traces || (same_user && has_ours)) return OkStatus();
  return ErrnoError(EACCES, "has not the capabilities by which it could read this memory by itself");
}

Status CheckUser(int socket) {
  ASSIGN_OR_RETURN(const OtherEnd peer, Look(socket));
  return OfProcess(peer, CheckNamespaces(peer.traits, peer.own));
}

Status CheckMayTrace(int socket) {
  ASSIGN_OR_RETURN(const OtherEnd peer, Look(socket));
  RETURN_IF_ERROR(OfProcess(peer, CheckNamespaces(peer.traits, peer.own)));
  return OfProcess(peer, CheckCapabilities(peer.traits, peer.own, peer.user.uid == ::geteuid()));
}

}  // namespace nacre::shm
