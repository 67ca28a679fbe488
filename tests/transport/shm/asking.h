// Asks a server to show its memory, as a process that is none of Nacre's would.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <string>

namespace nacre {

enum class Outcome { kShown = 10, kRefused, kNotPermitted, kFailed };

// Refused: it said so, showed nothing and closed the connection.
inline Outcome Ask(const std::string& where) {
  constexpr size_t kSetupSize = 16 + 8 * 16;
  sockaddr_un at{AF_UNIX};
  std::memcpy(at.sun_path + 1, where.data() + 6, where.size() - 6);
  const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + where.size() - 6);
  if (::connect(fd, reinterpret_cast<sockaddr*>(&at), size) != 0) return Outcome::kFailed;
  char text[kSetupSize];
  char control[512];
  iovec piece{text, sizeof text};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  if (::recvmsg(fd, &message, 0) != sizeof text) return Outcome::kFailed;
  const bool shown = message.msg_controllen > 0, refused = text[8] == 1;
  if (shown == refused) return Outcome::kFailed;
  if (shown) return Outcome::kShown;
  return ::recv(fd, text, 1, 0) == 0 ? Outcome::kRefused : Outcome::kFailed;
}

// As a process of its own, after `change` has made it what it is to be. Nothing but system calls.
inline Outcome AskAs(const std::string& where, bool (*change)(), bool fork_again = false) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (!change()) ::_exit(static_cast<int>(Outcome::kNotPermitted));
    const pid_t inner = fork_again ? ::fork() : 0;
    if (inner == 0) ::_exit(static_cast<int>(Ask(where)));
    int status = -1;
    ::waitpid(inner, &status, 0);
    ::_exit(WEXITSTATUS(status));
  }
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  return static_cast<Outcome>(WEXITSTATUS(status));
}

}  // namespace nacre
