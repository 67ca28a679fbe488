#include "tests/transport/tcp/raw_socket.h"

#include <absl/strings/str_format.h>
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdlib>

namespace nacre {
namespace {

sockaddr_in Loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

}  // namespace

RawSocket::RawSocket(int fd) : fd_(fd) {
  const timeval limit{10, 0};
  ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  ::setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

RawSocket::~RawSocket() { Close(); }

void RawSocket::Close() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

RawSocket RawSocket::ConnectTo(const std::string& address) {
  const sockaddr_in to = Loopback(static_cast<uint16_t>(std::atoi(address.c_str() + address.rfind(':') + 1)));
  int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_EQ(::connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to), 0) << address;
  return RawSocket(fd);
}

// An other side that has hung up is no error: tests look at what it did before.
void RawSocket::Send(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return;
    bytes = bytes.subspan(static_cast<size_t>(sent));
  }
}

void RawSocket::Send(const FrameHeader& header, std::string_view rest) {
  std::vector<std::byte> bytes(kFrameHeaderSize + rest.size());
  EncodeFrameHeader(header, bytes.data());
  std::copy(rest.begin(), rest.end(), reinterpret_cast<char*>(bytes.data() + kFrameHeaderSize));
  Send(bytes);
}

std::vector<std::byte> RawSocket::Receive(size_t size) {
  std::vector<std::byte> bytes(size);
  size_t done = 0;
  while (done < size) {
    ssize_t n = ::recv(fd_, bytes.data() + done, size - done, 0);
    if (n <= 0) break;
    done += static_cast<size_t>(n);
  }
  bytes.resize(done);
  return bytes;
}

FrameHeader RawSocket::ReceiveFrame(FrameReceiver receiver, std::string* rest) {
  std::vector<std::byte> bytes = Receive(kFrameHeaderSize);
  if (bytes.size() < kFrameHeaderSize) return {};
  auto header = ParseFrameHeader(std::span(bytes).first<kFrameHeaderSize>(), receiver);
  EXPECT_TRUE(header.ok()) << header.status();
  if (!header.ok()) return {};
  size_t size = header->body_length;
  const bool meant = header->type == FrameType::kGet || header->type == FrameType::kSharedPut;
  if (!meant) size += header->payload_length;
  bytes = Receive(size);
  rest->assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return *header;
}

bool RawSocket::WaitForEnd() {
  std::array<std::byte, 4096> ignored;
  for (;;) {
    ssize_t n = ::recv(fd_, ignored.data(), ignored.size(), 0);
    if (n == 0) return true;
    if (n < 0) return errno == ECONNRESET;
  }
}

void RawSocket::Greet() {
  FrameHeader hello;
  hello.body_length = 4;
  Send(hello, "test");
  std::string rest;
  EXPECT_EQ(ReceiveFrame(FrameReceiver::kClient, &rest).type, FrameType::kHello);
}

void RawSocket::AnswerGreeting(uint64_t calls_at_once) {
  std::string rest;
  EXPECT_EQ(ReceiveFrame(FrameReceiver::kServer, &rest).type, FrameType::kHello);
  FrameHeader hello;
  hello.offset = calls_at_once;
  Send(hello);
}

RawListener::RawListener() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  const timeval limit{10, 0};
  ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  sockaddr_in at = Loopback(0);
  EXPECT_EQ(::bind(fd_, reinterpret_cast<const sockaddr*>(&at), sizeof at), 0);
  EXPECT_EQ(::listen(fd_, 16), 0);
  socklen_t size = sizeof at;
  EXPECT_EQ(::getsockname(fd_, reinterpret_cast<sockaddr*>(&at), &size), 0);
  address_ = absl::StrFormat("127.0.0.1:%d", ntohs(at.sin_port));
}

RawListener::~RawListener() { ::close(fd_); }

RawSocket RawListener::Accept() { return RawSocket(::accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC)); }

}  // namespace nacre
