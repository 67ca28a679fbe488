#include "server/replication/withheld_transport.h"

#include <cerrno>
#include <utility>

namespace nacre::replication {
namespace {

class WithheldPeer : public Peer {
 public:
  WithheldPeer(std::shared_ptr<Peer> peer, std::shared_ptr<Authority> authority, Clock& clock)
      : peer_(std::move(peer)), authority_(std::move(authority)), clock_(clock) {}

  Task<StatusOr<std::string>> Call(CallRequest request, Duration timeout) override {
    const Duration end = clock_.Now() + timeout;
    OneShot<Status> left;
    authority_->WhenKept([left](bool kept) {
      left.Set(kept ? OkStatus() : ErrnoError(ENOTCONN, "this MDS is not the primary any more"));
    });
    std::unique_ptr<TimerHandle> timer;
    if (!left.IsSet()) {
      const Executor executor = co_await CurrentExecutor();
      timer = clock_.After(executor, timeout, [left] {
        left.Set(ErrnoError(ETIMEDOUT, "the other MDSes have not taken what was changed before this call"));
      });
    }
    Status status = co_await left.Wait();
    CO_RETURN_IF_ERROR(status);
    co_return co_await peer_->Call(std::move(request), end - clock_.Now());
  }

  void EndGivenUp() override { peer_->EndGivenUp(); }  // one that waits here is given up when it begins
  PathInfo path() const override { return peer_->path(); }
  std::string PathFor(const MemoryRegion& memory) const override { return peer_->PathFor(memory); }
  bool connected() const override { return peer_->connected(); }
  std::string address() const override { return peer_->address(); }
  void Close() override { peer_->Close(); }

 private:
  const std::shared_ptr<Peer> peer_;
  const std::shared_ptr<Authority> authority_;
  Clock& clock_;
};

class WithheldTransport : public Transport {
 public:
  WithheldTransport(Transport& transport, std::shared_ptr<Authority> authority, Clock& clock)
      : transport_(transport), authority_(std::move(authority)), clock_(clock) {}

  StatusOr<std::shared_ptr<MemoryRegion>> Register(std::byte* data, size_t size) override {
    return transport_.Register(data, size);
  }
  StatusOr<std::shared_ptr<MemoryRegion>> RegisterShared(std::shared_ptr<SharedMemory> memory) override {
    return transport_.RegisterShared(std::move(memory));
  }
  StatusOr<std::shared_ptr<MemoryRegion>> RegisterDevice(std::shared_ptr<MemoryDevice> device,
                                                         std::byte* data, size_t size) override {
    return transport_.RegisterDevice(std::move(device), data, size);
  }
  StatusOr<std::shared_ptr<Peer>> Connect(const std::string& address) override {
    ASSIGN_OR_RETURN(std::shared_ptr<Peer> peer, transport_.Connect(address));
    return std::make_shared<WithheldPeer>(std::move(peer), authority_, clock_);
  }
  StatusOr<std::unique_ptr<Listener>> Listen(const std::string& address, CallHandler handler) override {
    return transport_.Listen(address, std::move(handler));
  }

 private:
  Transport& transport_;
  const std::shared_ptr<Authority> authority_;
  Clock& clock_;
};

}  // namespace

std::shared_ptr<Transport> NewWithheldTransport(Transport& transport, std::shared_ptr<Authority> authority,
                                                Clock& clock) {
  return std::make_shared<WithheldTransport>(transport, std::move(authority), clock);
}

}  // namespace nacre::replication
