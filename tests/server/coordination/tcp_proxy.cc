#include "tests/server/coordination/tcp_proxy.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

namespace nacre::coordination {
namespace {

constexpr int kTurnMs = 5;  // after which the thread looks at what it was told

sockaddr_in Loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

int TcpSocket() { return ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0); }

}  // namespace

TcpProxy::TcpProxy(const std::string& target) : listener_(TcpSocket()) {
  if (!absl::SimpleAtoi(target.substr(target.rfind(':') + 1), &target_port_)) std::abort();
  sockaddr_in address = Loopback(0);
  socklen_t size = sizeof address;
  if (::bind(listener_, reinterpret_cast<sockaddr*>(&address), size) != 0) std::abort();
  if (::listen(listener_, 16) != 0) std::abort();
  ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
  port_ = ntohs(address.sin_port);
  thread_ = std::thread([this] { Run(); });
}

TcpProxy::~TcpProxy() {
  stop_ = true;
  thread_.join();
  ::close(listener_);
}

std::string TcpProxy::address() const { return absl::StrCat("127.0.0.1:", port_); }

void TcpProxy::Run() {
  while (true) {
    if (stop_ || break_) {
      for (const Pair& pair : pairs_) {
        ::close(pair.client);
        ::close(pair.target);
      }
      pairs_.clear();
      if (stop_) return;
      lose_answers_ = false;
      break_ = false;
    }
    std::vector<pollfd> polled = {{listener_, POLLIN, 0}};
    for (const Pair& pair : pairs_) {
      polled.push_back({pair.client, POLLIN, 0});
      polled.push_back({pair.target, POLLIN, 0});
    }
    if (::poll(polled.data(), polled.size(), kTurnMs) <= 0) continue;
    const size_t before = pairs_.size();
    if (polled[0].revents != 0) {
      Pair pair{::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC), TcpSocket()};
      const sockaddr_in address = Loopback(target_port_);
      ::connect(pair.target, reinterpret_cast<const sockaddr*>(&address), sizeof address);
      pairs_.push_back(pair);
    }
    for (size_t i = 0; i < before; ++i) {
      const bool whole = (polled[1 + 2 * i].revents == 0 || PassOn(pairs_[i], true)) &&
                         (polled[2 + 2 * i].revents == 0 || PassOn(pairs_[i], false));
      if (whole) continue;
      ::close(std::exchange(pairs_[i].client, -1));
      ::close(std::exchange(pairs_[i].target, -1));
    }
    std::erase_if(pairs_, [](const Pair& pair) { return pair.client < 0; });
  }
}

// False: one side has ended the connection.
bool TcpProxy::PassOn(Pair& pair, bool from_client) {
  char buffer[65536];
  const ssize_t size = ::recv(from_client ? pair.client : pair.target, buffer, sizeof buffer, 0);
  if (size <= 0) return false;
  if (!from_client && lose_answers_) return true;
  for (ssize_t at = 0; at < size;) {
    const ssize_t sent = ::send(from_client ? pair.target : pair.client, buffer + at,
                                static_cast<size_t>(size - at), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    at += sent;
  }
  if (from_client) asked_ += static_cast<uint64_t>(size);
  return true;
}

}  // namespace nacre::coordination
