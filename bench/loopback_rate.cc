#include "bench/loopback_rate.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

namespace nacre::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kSource = size_t{1} << 30;  // more than any cache holds, as a server's pool
constexpr size_t kPiece = 1 << 20;           // as our staging slots

[[noreturn]] void Die(const char* what) {
  std::perror(what);
  std::exit(1);
}

sockaddr_in Loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

// Until the other side hangs up.
void Send(int fd, const char* source, size_t begin) {
  for (size_t at = begin;; at = (at + kPiece) % kSource) {
    for (size_t done = 0; done < kPiece;) {
      const ssize_t sent = ::send(fd, source + at + done, kPiece - done, MSG_NOSIGNAL);
      if (sent <= 0) {
        ::close(fd);
        return;
      }
      done += static_cast<size_t>(sent);
    }
  }
}

[[noreturn]] void RunSender(int listener) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  void* memory = ::mmap(nullptr, kSource, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) Die("mmap");
  std::memset(memory, 0x5a, kSource);
  for (size_t count = 0;; ++count) {
    const int fd = ::accept(listener, nullptr, nullptr);
    if (fd < 0) Die("accept");
    std::thread(Send, fd, static_cast<const char*>(memory), count % 8 * (kSource / 8)).detach();
  }
}

int Connect(uint16_t port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = Loopback(port);
  if (fd < 0 || ::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) Die("connect");
  return fd;
}

}  // namespace

LoopbackRate::LoopbackRate() {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = Loopback(0);
  socklen_t length = sizeof address;
  if (listener < 0 || ::bind(listener, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      ::listen(listener, 64) != 0 ||
      ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length) != 0)
    Die("listening on loopback");
  port_ = ntohs(address.sin_port);
  sender_ = ::fork();
  if (sender_ < 0) Die("fork");
  if (sender_ == 0) RunSender(listener);
  ::close(listener);
}

LoopbackRate::~LoopbackRate() {
  ::kill(sender_, SIGKILL);
  ::waitpid(sender_, nullptr, 0);
}

LoopbackRate::Received LoopbackRate::Receive(size_t connections, double seconds,
                                             std::span<std::byte> memory) const {
  std::atomic<uint64_t> bytes = 0;
  std::atomic<bool> stop = false;
  const size_t share = memory.size() / connections / kPiece * kPiece;
  auto receive = [&](int fd, std::byte* into) {
    for (size_t at = 0; !stop; at = (at + kPiece) % share) {
      const ssize_t got = ::recv(fd, into + at, kPiece, MSG_WAITALL);
      if (got <= 0) Die("recv");
      bytes += static_cast<uint64_t>(got);
    }
    ::close(fd);
  };
  std::vector<std::thread> threads;
  for (size_t i = 0; i < connections; ++i)
    threads.emplace_back(receive, Connect(port_), memory.data() + i * share);
  const auto begin = Clock::now();
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  const Received received{bytes, std::chrono::duration<double>(Clock::now() - begin).count()};
  stop = true;
  for (std::thread& thread : threads) thread.join();
  return received;
}

}  // namespace nacre::bench
