#include "api/event_fd.h"

#include <absl/strings/str_format.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace nacre::api {

StatusOr<std::shared_ptr<EventFd>> EventFd::Duplicate(int fd) {
  const int duplicate = ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (duplicate < 0) return ErrnoError(errno, absl::StrFormat("descriptor %d: %s", fd, std::strerror(errno)));
  std::shared_ptr<EventFd> event(new EventFd(duplicate));
  char kind[64];
  const ssize_t length =
      ::readlink(absl::StrFormat("/proc/self/fd/%d", duplicate).c_str(), kind, sizeof kind);
  if (length < 0 || std::string_view(kind, static_cast<size_t>(length)) == "anon_inode:[eventfd]")
    return event;
  return ErrnoError(EINVAL, absl::StrFormat("descriptor %d is no eventfd: it is %s", fd,
                                            std::string_view(kind, static_cast<size_t>(length))));
}

EventFd::~EventFd() { ::close(fd_); }

void EventFd::Add() const {
  const uint64_t one = 1;
  (void)!::write(fd_, &one, sizeof one);  // full: then it is readable anyhow
}

}  // namespace nacre::api
