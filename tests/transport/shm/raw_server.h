// Listens at an abstract unix address, where a client looks for a server. Not thread-safe.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <string>

namespace nacre {

class RawServer {
 public:
  explicit RawServer(const std::string& address) : fd_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un at{AF_UNIX};
    const std::string name = address.substr(std::strlen("unix:@"));
    std::memcpy(at.sun_path + 1, name.data(), name.size());
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    EXPECT_EQ(::bind(fd_, reinterpret_cast<sockaddr*>(&at), size), 0);
    EXPECT_EQ(::listen(fd_, 8), 0);
  }
  ~RawServer() { ::close(fd_); }
  int Accept() { return ::accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC); }

 private:
  const int fd_;
};

}  // namespace nacre
