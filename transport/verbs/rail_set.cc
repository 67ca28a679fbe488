#include "transport/verbs/rail_set.h"

#include <absl/strings/str_format.h>

#include <algorithm>

#include "common/log.h"

namespace nacre::verbs {

Status RailSet::Look() {
  ASSIGN_OR_RETURN(const Ibverbs* ibverbs, LoadIbverbs());
  return FindPorts(*ibverbs).status();
}

StatusOr<std::shared_ptr<Rail>> RailSet::Choose(std::optional<LinkLayer> link, uint32_t local_ipv4) {
  ASSIGN_OR_RETURN(const Ibverbs* ibverbs, LoadIbverbs());
  ASSIGN_OR_RETURN(const std::vector<PortInfo> ports, FindPorts(*ibverbs));
  const PortInfo* port = ChoosePort(ports, link, local_ipv4);
  if (port == nullptr) {
    return absl::UnavailableError(absl::StrFormat("the other side is on %s, and no RDMA port here is",
                                                  *link == LinkLayer::kEthernet ? "Ethernet" : "InfiniBand"));
  }
  std::lock_guard lock(mutex_);
  for (const auto& rail : rails_) {
    if (rail->port().device == port->device && rail->port().port == port->port && !rail->failed())
      return rail;
  }
  ASSIGN_OR_RETURN(std::shared_ptr<Rail> rail, Rail::Open(*ibverbs, *port, executor_, clock_, spin_));
  rail->OnFailure([weak = weak_from_this(), raw = rail.get()] {
    if (auto self = weak.lock()) self->Drop(raw);
  });
  LogInfo("data plane: RDMA on %s", port->name());
  rails_.push_back(rail);
  return rail;
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
}

}  // namespace nacre::verbs
