// How a link comes to be: agreed upon with the server, and tried out.
#include <absl/strings/str_format.h>

#include "transport/verbs/client_link.h"

namespace nacre::verbs {
namespace {

constexpr Duration kPingTimeout = std::chrono::seconds(2);
constexpr size_t kTrialBytes = 4096;

}  // namespace

Task<Status> ClientLink::Establish(std::shared_ptr<ClientLink> self, std::shared_ptr<RailSet> rails,
                                   std::optional<RemotePort> wanted, Duration timeout) {
  auto expire = [weak = std::weak_ptr(self)](Duration now) {
    auto self = weak.lock();
    return self == nullptr ? kNoDeadline : self->Expire(now);
  };
  self->watchdog_ = std::make_shared<Watchdog>(self->executor(), self->clock(), std::move(expire));
  if (Status status = self->Open(); !status.ok()) {
    self->control_->Shutdown(status);
    co_return status;
  }
  Status status = co_await Attach(self, std::move(rails), wanted, timeout);
  if (status.ok()) status = self->MakeWindows();
  if (status.ok()) status = co_await TryOut(self);
  if (!status.ok()) self->Shutdown(status);
  std::lock_guard lock(self->mutex_);
  self->open_ = self->was_open_ = status.ok() && !self->closing();
  if (!self->open_) co_return status;
  self->meter_->SetDevice(self->rail().port().numa_node, self->rail().domain()->registrations());
  self->meter_->AddConnection(1);
  co_return status;
}

Task<Status> ClientLink::Attach(std::shared_ptr<ClientLink> self, std::shared_ptr<RailSet> rails,
                                std::optional<RemotePort> wanted, Duration timeout) {
  absl::AnyInvocable<void(const Status&)> closed = [weak = std::weak_ptr(self)](const Status& why) {
    if (auto self = weak.lock()) self->Shutdown(why);
  };
  AttachMessage message{self->local(), std::nullopt};
  if (wanted) message.wanted = wanted->gid;
  std::string request = EncodeAttach(message);
  CO_ASSIGN_OR_RETURN(std::string reply,
                      co_await self->control_->Attach(std::move(request), timeout, std::move(closed)));
  CO_ASSIGN_OR_RETURN(Endpoint remote, ParseEndpoint(reply));
  if (remote.calls == 0) co_return ErrnoError(EPROTO, "it allows no calls");
  if (remote.link != self->rail().port().link)
    co_return ErrnoError(EPROTO, "it answers from another link layer");
  co_return co_await RailSet::Join(std::move(rails), self, remote);
}

// That the queue pairs are joined does not say yet that packets find their way, nor that a device has windows
// that it binds them: a link whose first call with memory failed would be made again and again.
Task<Status> ClientLink::TryOut(std::shared_ptr<ClientLink> self) {
  std::vector<WindowBinding> windows;
  if (!self->rail().domain()->windows()) co_return co_await Ping(self, std::move(windows), kPingTimeout);
  std::vector<std::byte> memory(kTrialBytes);
  CO_ASSIGN_OR_RETURN(std::unique_ptr<Registration> trial,
                      Registration::Make(self->rail().domain(), memory.data(), memory.size(),
                                         IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND));
  const RegisteredPiece piece{trial->region(), reinterpret_cast<uint64_t>(memory.data()), memory.size()};
  {
    std::lock_guard lock(self->mutex_);
    if (self->windows_ == nullptr) co_return absl::UnavailableError("it has ended");
    windows.push_back(BindTo(self->windows_->Take(), piece, IBV_ACCESS_REMOTE_READ));
  }
  const WindowBinding binding = windows.front();
  Status status = co_await Ping(self, std::move(windows), kPingTimeout);
  if (status.ok()) {
    Transfer back;
    back.opcode = IBV_WR_LOCAL_INV;
    back.parts.resize(1);
    back.parts[0].remote_key = binding.key;
    status = co_await self->Run(&back);
  }
  if (!status.ok()) {
    self->Shutdown(status);
    OneShot<Unit> closed = self->Closed();
    co_await closed.Wait();  // nothing is bound to the memory any more
    co_return absl::UnavailableError(absl::StrFormat("trying out %s with a memory window: %s",
                                                     self->rail().port().name(), status.message()));
  }
  std::lock_guard lock(self->mutex_);
  if (self->windows_ != nullptr) self->windows_->Return(binding.window);
  co_return OkStatus();
}

Task<Status> ClientLink::Ping(std::shared_ptr<ClientLink> self, std::vector<WindowBinding> windows,
                              Duration timeout) {
  if (!self->Send(FragmentKind::kPing, 0, 0, std::string(), std::move(windows)))
    co_return absl::UnavailableError("it has ended");
  auto expire = [pong = self->pong_, name = self->rail().port().name()] {
    pong.Set(
        absl::UnavailableError(absl::StrFormat("no RDMA packets arrive between %s and the server", name)));
  };
  auto timer = self->clock().After(self->executor(), timeout, std::move(expire));
  co_return co_await self->pong_.Wait();
}

Status ClientLink::MakeWindows() {
  if (!rail().domain()->windows()) return OkStatus();
  ASSIGN_OR_RETURN(std::unique_ptr<WindowPool> made, WindowPool::Make(rail().domain(), kWindowsOfLink));
  std::lock_guard lock(mutex_);
  if (!closing()) windows_ = std::move(made);
  return OkStatus();
}

}  // namespace nacre::verbs
