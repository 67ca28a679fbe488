#include "transport/verbs/rail_set.h"

#include <absl/strings/str_format.h>

#include <algorithm>
#include <boost/asio/post.hpp>

#include "common/log.h"
#include "common/metrics.h"

namespace nacre::verbs {
namespace {

constexpr int kJoiners = 2, kMaxJoining = 64;
constexpr Duration kPortsAreNew = std::chrono::seconds(1);

}  // namespace

Status RailSet::Look() {
  ASSIGN_OR_RETURN(const Ibverbs* ibverbs, LoadIbverbs());
  return FindPorts(*ibverbs).status();
}

StatusOr<std::vector<PortInfo>> RailSet::Ports() { return LookOrRecall(true); }

bool RailSet::HasPorts() { return LookOrRecall(false).ok(); }

StatusOr<std::vector<PortInfo>> RailSet::LookOrRecall(bool doubt_none) {
  ASSIGN_OR_RETURN(const Ibverbs* ibverbs, LoadIbverbs());
  std::unique_lock lock(mutex_);
  const bool known = ports_ && (ports_->ok() || !doubt_none);
  if (known && (looking_ || clock_.Now() - ports_seen_ < kPortsAreNew)) return *ports_;
  while (looking_) {
    looked_.wait(lock);
    if (ports_ && !looking_) return *ports_;
  }
  looking_ = true;
  ports_seen_ = clock_.Now();
  lock.unlock();
  StatusOr<std::vector<PortInfo>> ports = FindPorts(*ibverbs);
  lock.lock();
  looking_ = false;
  ports_ = ports;
  looked_.notify_all();
  return ports;
}

StatusOr<std::shared_ptr<Rail>> RailSet::Choose(std::optional<LinkLayer> link, uint32_t local_ipv4) {
  ASSIGN_OR_RETURN(const std::vector<PortInfo> ports, Ports());
  const PortInfo* port = ChoosePort(ports, link, local_ipv4);
  if (port != nullptr) return Open(*port);
  return absl::UnavailableError(absl::StrFormat("the other side is on %s, and no RDMA port here is",
                                                *link == LinkLayer::kEthernet ? "Ethernet" : "InfiniBand"));
}

StatusOr<std::shared_ptr<Rail>> RailSet::Choose(LinkLayer link, const Gid& gid) {
  ASSIGN_OR_RETURN(const std::vector<PortInfo> ports, Ports());
  for (const PortInfo& port : ports) {
    if (port.link == link && port.gid == gid) return Open(port);
  }
  return absl::UnavailableError("no RDMA port here has the address that was asked for");
}

StatusOr<std::shared_ptr<Rail>> RailSet::Open(const PortInfo& port) {
  ASSIGN_OR_RETURN(const Ibverbs* ibverbs, LoadIbverbs());
  std::lock_guard lock(mutex_);
  for (const auto& rail : rails_) {
    if (rail->port().device == port.device && rail->port().port == port.port && !rail->failed()) return rail;
  }
  StatusOr<std::shared_ptr<Rail>> opened = Rail::Open(*ibverbs, port, executor_, clock_, options_);
  if (!opened.ok()) ports_.reset();
  ASSIGN_OR_RETURN(std::shared_ptr<Rail> rail, std::move(opened));
  rail->OnFailure([weak = weak_from_this(), raw = rail.get()] {
    auto self = weak.lock();
    return self == nullptr ? raw->Close() : self->Drop(raw);
  });
  LogInfo("data plane: RDMA on %s", port.name());
  if (stopped_) rail->Rest();
  rails_.push_back(rail);
  return rail;
}

Task<Status> RailSet::Join(std::shared_ptr<RailSet> self, std::shared_ptr<Channel> channel, Endpoint remote) {
  const OneShot<Status> done;
  {
    std::lock_guard lock(self->mutex_);
    if (self->stopped_) co_return absl::UnavailableError("the transport has ended");
    if (self->joining_ >= kMaxJoining) {
      GetCounter("transport.verbs.joins_refused").Add();
      co_return absl::UnavailableError("too many RDMA connections are being made at once");
    }
    ++self->joining_;
    asio::post(self->Joiners(), [&joining = self->joining_, channel = std::move(channel), remote, done] {
      Status status = channel->Join(remote);
      --joining;
      done.Set(std::move(status));
    });
  }
  co_return co_await done.Wait();
}

asio::thread_pool& RailSet::Joiners() {
  if (joiners_ == nullptr) joiners_ = std::make_unique<asio::thread_pool>(kJoiners);
  return *joiners_;
}

Task<Status> RailSet::RegisterOwn(std::shared_ptr<RailSet> self, std::shared_ptr<Rail> rail) {
  if (std::optional<Status> known = self->regions_->FindOwn(*rail->domain())) co_return *std::move(known);
  const OneShot<Status> done;
  {
    std::lock_guard lock(self->mutex_);
    if (self->stopped_) co_return absl::UnavailableError("the transport has ended");
    asio::post(self->Joiners(), [regions = self->regions_, rail = std::move(rail), done] {
      done.Set(regions->RegisterOwn(rail->domain()));
    });
  }
  co_return co_await done.Wait();
}

Task<StatusOr<std::vector<MemoryKeys>>> RailSet::RegisterMemory(std::shared_ptr<RailSet> self,
                                                                std::shared_ptr<Domain> domain,
                                                                std::vector<MemorySpan> memory,
                                                                Duration deadline) {
  const OneShot<StatusOr<std::vector<MemoryKeys>>> done;
  auto work = [regions = self->regions_, domain = std::move(domain), memory = std::move(memory),
               done]() -> StatusOr<std::vector<MemoryKeys>> {
    std::vector<MemoryKeys> all;
    for (const MemorySpan& span : memory) {
      if (span.length == 0) continue;
      ASSIGN_OR_RETURN(MemoryKeys keys, regions->FindSpan(domain, span));
      all.push_back(std::move(keys));
    }
    return all;
  };
  {
    std::lock_guard lock(self->mutex_);
    if (self->stopped_) co_return absl::UnavailableError("the transport has ended");
    asio::post(self->Joiners(), [work = std::move(work), done] { done.Set(work()); });
  }
  auto expire = [done] {
    done.Set(ErrnoError(ETIMEDOUT, "the memory of a call was not registered with the RDMA device in time"));
  };
  auto timer = self->clock_.After(self->executor_, deadline - self->clock_.Now(), std::move(expire));
  co_return co_await done.Wait();
}

void RailSet::Prepare() {
  if (!regions_->HasOwn()) return;
  std::lock_guard lock(mutex_);
  if (!stopped_) asio::post(Joiners(), [this] { PrepareAll(); });  // Stop waits for it
}

void RailSet::PrepareAll() {
  const StatusOr<std::vector<PortInfo>> ports = Ports();
  for (size_t i = 0; ports.ok() && i < ports->size() && !stopping_.load(); ++i) {
    StatusOr<std::shared_ptr<Rail>> rail = Open((*ports)[i]);
    Status status = rail.status();
    if (rail.ok()) (*rail)->Watch();
    if (rail.ok()) status = regions_->RegisterOwn((*rail)->domain());
    if (status.ok()) continue;
    LogWarning("data plane: RDMA on %s copies through other memory: %s", (*ports)[i].name(),
               status.message());
  }
}

void RailSet::Stop() {
  stopping_ = true;
  std::unique_ptr<asio::thread_pool> joiners;
  {
    std::lock_guard lock(mutex_);
    stopped_ = true;
    joiners = std::move(joiners_);
    for (const auto& rail : rails_) rail->Rest();
  }
  if (joiners != nullptr) joiners->join();
}

void RailSet::Drop(const Rail* rail) {
  std::shared_ptr<Rail> dropped;
  {
    std::lock_guard lock(mutex_);
    auto found =
        std::find_if(rails_.begin(), rails_.end(), [&](const auto& known) { return known.get() == rail; });
    if (found == rails_.end()) return;
    dropped = std::move(*found);
    rails_.erase(found);
  }
  regions_->Forget(*dropped->domain());
  if (dropped->domain()->stranded()) CloseBeside(std::move(dropped));
}

// The kernel may wait for the device for long.
void RailSet::CloseBeside(std::shared_ptr<Rail> rail) {
  {
    std::lock_guard lock(mutex_);
    if (!stopped_) {
      asio::post(Joiners(), [rail = std::move(rail)] { rail->Close(); });
      return;
    }
  }
  rail->Close();
}

}  // namespace nacre::verbs
