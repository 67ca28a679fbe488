// A server and a client over shared memory, with memory that each has shown to the other, and clients that
// speak for themselves.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/transport/tcp/raw_socket.h"
#include "tests/transport/transport_fixture.h"
#include "transport/shm/setup.h"
#include "transport/shm/shm_transport.h"

namespace nacre {

class ShmFixture : public TransportTest {
 protected:
  static constexpr size_t kPool = 4 << 20;

  void SetUp() override {
    TransportTest::SetUp();
    pool_ = SharedMemory::Create("nacre-test-pool", kPool).value();
    memory_ = SharedMemory::Create("nacre-test-memory", kPool).value();
  }
  void TearDown() override {
    pool_region_.reset();
    region_.reset();
    quick_listener_.reset();
    TransportTest::TearDown();
  }

  // The pool is shown to all that connect afterwards.
  void Show() {
    pool_region_ = server().RegisterShared(pool_).value();
    region_ = client().RegisterShared(memory_).value();
    const std::vector<std::byte> content = RandomBytes(kPool, 11);
    std::copy(content.begin(), content.end(), pool_->data());
  }

  std::span<const std::byte> Pool(size_t offset, size_t size) const { return {pool_->data() + offset, size}; }

  // A server that cuts slow takers off soon.
  std::string ListenQuick(CallHandler handler) {
    ShmOptions options;
    options.taking_timeout = 50ms;
    quick_ = MakeShmTransport(executor(), RealClock(), options);
    pool_region_ = quick_->RegisterShared(pool_).value();
    quick_listener_ =
        quick_->Listen("unix:@nacre_quick." + std::to_string(::getpid()), std::move(handler)).value();
    return quick_listener_->address();
  }

  std::shared_ptr<SharedMemory> pool_, memory_;
  std::shared_ptr<MemoryRegion> pool_region_, region_;
  std::unique_ptr<Transport> quick_;
  std::unique_ptr<Listener> quick_listener_;
};

inline constexpr size_t kSetupSize = 16 + 8 * shm::kMaxRegions;

// A plain socket to an abstract address.
inline int ConnectRaw(const std::string& address) {
  sockaddr_un at{AF_UNIX};
  const std::string name = address.substr(std::strlen("unix:@"));
  std::memcpy(at.sun_path + 1, name.data(), name.size());
  int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  EXPECT_EQ(::connect(fd, reinterpret_cast<sockaddr*>(&at), size), 0) << address;
  return fd;
}

// Speaks as a client that has been shown the pool, and has made one call for `size` bytes of it.
inline RawSocket HalfAClient(const std::string& address, size_t size) {
  const int fd = ConnectRaw(address);
  EXPECT_EQ(shm::SendSetup(fd, {}), OkStatus());
  RawSocket socket(fd);
  (void)socket.Receive(kSetupSize);  // the server's; without its descriptors
  socket.Greet();
  FrameHeader call{FrameType::kCall, static_cast<uint8_t>(CallMemory::kPutTarget), 1, size, 3};
  socket.Send(call, "0 1");
  return socket;
}

}  // namespace nacre
