#include "transport/shm/shm_transport.h"

#include <absl/strings/match.h>
#include <absl/strings/str_format.h>
#include <unistd.h>

#include <cerrno>

#include "common/host.h"
#include "common/random.h"
#include "transport/memory.h"
#include "transport/shm/shm_client.h"
#include "transport/shm/shm_memory.h"
#include "transport/shm/shm_server.h"
#include "transport/tcp/tcp_listener.h"

namespace nacre {
namespace {

Status CheckAddress(const std::string& address) {
  if (absl::StartsWith(address, "unix:")) return OkStatus();
  return ErrnoError(
      EINVAL,
      absl::StrFormat("\"%s\" is not an address for shared memory: write unix:/PATH or unix:@NAME", address));
}

class ShmTransport : public Transport {
 public:
  ShmTransport(Executor executor, Clock& clock, ShmOptions options)
      : executor_(std::move(executor)), clock_(clock), options_(std::move(options)) {
    options_.stream = Complete(std::move(options_.stream));
  }

  StatusOr<std::shared_ptr<MemoryRegion>> Register(std::byte* data, size_t size) override {
    return RegisterHostMemory(data, size);
  }
  StatusOr<std::shared_ptr<MemoryRegion>> RegisterShared(std::shared_ptr<SharedMemory> memory) override {
    return memory_->Register(std::move(memory));
  }

  StatusOr<std::shared_ptr<MemoryRegion>> RegisterDevice(std::shared_ptr<MemoryDevice> device,
                                                         std::byte* data, size_t size) override {
    return RegisterDeviceMemory(std::move(device), data, size);
  }

  StatusOr<std::shared_ptr<Peer>> Connect(const std::string& address) override { return Stream(address); }

  StatusOr<std::shared_ptr<StreamPeer>> Stream(const std::string& address,
                                               std::shared_ptr<PathMeters> meters = nullptr) {
    RETURN_IF_ERROR(CheckAddress(address));
    return MakeStreamPeer(executor_, clock_, options_.stream, address, shm::ShmKind(memory_),
                          std::move(meters));
  }

  StatusOr<std::unique_ptr<Listener>> Listen(const std::string& address, CallHandler handler) override {
    RETURN_IF_ERROR(CheckAddress(address));
    auto make = [memory = memory_, own = shm::ShmServerOptions{options_.taking_timeout}](
                    StreamSocket socket, std::string name, std::shared_ptr<CallSink> sink, Clock& clock,
                    const TcpOptions& options, absl::AnyInvocable<void()> lost) {
      return std::make_shared<shm::ShmServerConnection>(std::move(socket), std::move(name), std::move(sink),
                                                        clock, options, std::move(lost), memory, own);
    };
    return MakeTcpListener(executor_, clock_, options_.stream, address, std::move(handler), std::move(make));
  }

 private:
  const Executor executor_;
  Clock& clock_;
  ShmOptions options_;
  const std::shared_ptr<shm::ShmMemory> memory_ = std::make_shared<shm::ShmMemory>();
};

// The offer: "BOOT-ID ADDRESS".
class OfferedListener : public Listener {
 public:
  OfferedListener(std::unique_ptr<Listener> listener, std::string boot)
      : listener_(std::move(listener)), boot_(std::move(boot)) {}
  std::string address() const override { return boot_ + " " + listener_->address(); }

 private:
  const std::unique_ptr<Listener> listener_;
  const std::string boot_;
};

class ShmCandidate : public PathCandidate {
 public:
  ShmCandidate(Executor executor, Clock& clock, ShmOptions options)
      : transport_(std::move(executor), clock, std::move(options)) {}

  std::string name() const override { return "shm"; }

  StatusOr<std::shared_ptr<MemoryRegion>> Register(std::byte* data, size_t size) override {
    return transport_.Register(data, size);
  }
  // Memory that the kernel does not let us show takes the way through the socket.
  StatusOr<std::shared_ptr<MemoryRegion>> RegisterShared(std::shared_ptr<SharedMemory> memory) override {
    if (memory->shareable().ok()) return transport_.RegisterShared(std::move(memory));
    return transport_.Register(memory->data(), memory->size());
  }

  StatusOr<std::shared_ptr<MemoryRegion>> RegisterDevice(std::shared_ptr<MemoryDevice> device,
                                                         std::byte* data, size_t size) override {
    return transport_.RegisterDevice(std::move(device), data, size);
  }

  StatusOr<std::unique_ptr<Listener>> Listen(CallHandler handler) override {
    ASSIGN_OR_RETURN(std::string boot, BootId());
    const std::string address = absl::StrFormat("unix:@nacre.%d.%016x", ::getpid(), SystemRandom().Next());
    ASSIGN_OR_RETURN(std::unique_ptr<Listener> listener, transport_.Listen(address, std::move(handler)));
    return std::make_unique<OfferedListener>(std::move(listener), std::move(boot));
  }

  Task<StatusOr<std::shared_ptr<Peer>>> Connect(std::string offer, Duration timeout,
                                                std::shared_ptr<PathMeters> meters) override {
    CO_ASSIGN_OR_RETURN(const std::string boot, BootId());
    const std::string prefix = boot + " ";
    if (!absl::StartsWith(offer, prefix)) co_return ErrnoError(ENOTSUP, "the server runs on another machine");
    CO_ASSIGN_OR_RETURN(std::shared_ptr<StreamPeer> peer,
                        transport_.Stream(offer.substr(prefix.size()), std::move(meters)));
    CO_RETURN_IF_ERROR(co_await peer->ConnectNow(timeout));
    co_return peer;
  }

 private:
  ShmTransport transport_;
};

}  // namespace

std::unique_ptr<Transport> MakeShmTransport(Executor executor, Clock& clock, ShmOptions options) {
  return std::make_unique<ShmTransport>(std::move(executor), clock, std::move(options));
}

std::shared_ptr<PathCandidate> MakeShmCandidate(Executor executor, Clock& clock, ShmOptions options) {
  return std::make_shared<ShmCandidate>(std::move(executor), clock, std::move(options));
}

}  // namespace nacre
