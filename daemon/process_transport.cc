#include "daemon/process_transport.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>

#include <mutex>
#include <set>

#include "transport/data_plane.h"
#include "transport/inproc/inproc_transport.h"
#include "transport/shared_memory.h"

namespace nacre {
namespace {

// The addresses that this process listens at, shared with the listeners, which take theirs out.
class Addresses {
 public:
  void Add(const std::string& address) {
    std::lock_guard lock(mutex_);
    own_.insert(address);
  }
  void Remove(const std::string& address) {
    std::lock_guard lock(mutex_);
    own_.erase(address);
  }
  bool Contains(const std::string& address) {
    std::lock_guard lock(mutex_);
    return own_.contains(address);
  }

 private:
  std::mutex mutex_;
  std::set<std::string> own_;
};

std::string InprocName(const std::string& address) { return absl::StrCat("inproc:", address); }

class ProcessListener : public Listener {
 public:
  ProcessListener(std::shared_ptr<Addresses> addresses, std::unique_ptr<Listener> sockets,
                  std::unique_ptr<Listener> inproc)
      : addresses_(std::move(addresses)), sockets_(std::move(sockets)), inproc_(std::move(inproc)) {
    addresses_->Add(sockets_->address());
  }
  ~ProcessListener() override { addresses_->Remove(sockets_->address()); }
  std::string address() const override { return sockets_->address(); }

 private:
  std::shared_ptr<Addresses> addresses_;
  std::unique_ptr<Listener> sockets_, inproc_;
};

class ProcessTransport : public Transport {
 public:
  ProcessTransport(Executor executor, Clock& clock)
      : inproc_(MakeInprocTransport(MakeInprocNetwork(), executor, clock)),
        outside_(MakeDataPlane(executor, clock, "auto").value()) {}

  // In process every region will do.
  StatusOr<std::shared_ptr<MemoryRegion>> Register(std::byte* data, size_t size) override {
    return outside_->Register(data, size);
  }
  StatusOr<std::shared_ptr<MemoryRegion>> RegisterShared(std::shared_ptr<SharedMemory> memory) override {
    return outside_->RegisterShared(std::move(memory));
  }

  StatusOr<std::shared_ptr<Peer>> Connect(const std::string& address) override {
    if (absl::StartsWith(address, "inproc:")) return inproc_->Connect(address);
    if (addresses_->Contains(address)) return inproc_->Connect(InprocName(address));
    return outside_->Connect(address);
  }

  StatusOr<std::unique_ptr<Listener>> Listen(const std::string& address, CallHandler handler) override {
    if (absl::StartsWith(address, "inproc:")) return inproc_->Listen(address, std::move(handler));
    auto shared = std::make_shared<CallHandler>(std::move(handler));
    auto forward = [shared](std::shared_ptr<IncomingCall> call) { return (*shared)(std::move(call)); };
    ASSIGN_OR_RETURN(std::unique_ptr<Listener> sockets, outside_->Listen(address, forward));
    ASSIGN_OR_RETURN(std::unique_ptr<Listener> inproc,
                     inproc_->Listen(InprocName(sockets->address()), forward));
    return std::make_unique<ProcessListener>(addresses_, std::move(sockets), std::move(inproc));
  }

 private:
  std::unique_ptr<Transport> inproc_, outside_;
  std::shared_ptr<Addresses> addresses_ = std::make_shared<Addresses>();
};

}  // namespace

std::unique_ptr<Transport> MakeProcessTransport(Executor executor, Clock& clock) {
  return std::make_unique<ProcessTransport>(std::move(executor), clock);
}

}  // namespace nacre
