#include "transport/verbs/rail_plan.h"

#include <absl/strings/str_cat.h>
#include <arpa/inet.h>
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "transport/memory_device.h"

namespace nacre::verbs {
namespace {

constexpr uint64_t kFarCost = 1 << 20;  // as much more the near rails may have to do
constexpr size_t kSubnetSize = 8;       // of an InfiniBand GID: packets do not leave it without a route

std::string GidText(const Gid& gid) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const uint32_t ipv4 = htonl(GidIpv4(gid));
  const bool is_ipv4 = ipv4 != 0;
  const void* address = is_ipv4 ? static_cast<const void*>(&ipv4) : gid.data();
  ::inet_ntop(is_ipv4 ? AF_INET : AF_INET6, address, text.data(), text.size());
  return text.data();
}

bool CanReach(const PortInfo& local, const RemotePort& remote) {
  if (local.link != remote.link) return false;
  return local.link == LinkLayer::kEthernet ||
         std::equal(local.gid.begin(), local.gid.begin() + kSubnetSize, remote.gid.begin());
}

template <typename Port>
void PutFirst(std::vector<Port>* ports, uint32_t ipv4) {
  auto found = std::find_if(ports->begin(), ports->end(),
                            [&](const Port& port) { return ipv4 != 0 && GidIpv4(port.gid) == ipv4; });
  if (found != ports->end()) std::rotate(ports->begin(), found, found + 1);
}

}  // namespace

std::string RailPair::name() const {
  return remote ? absl::StrCat(local.name(), " to ", GidText(remote->gid)) : local.name();
}

std::vector<RailPair> PlanRails(std::vector<PortInfo> local, std::vector<RemotePort> remote,
                                uint32_t local_ipv4, uint32_t remote_ipv4) {
  std::vector<RailPair> pairs;
  PutFirst(&local, local_ipv4);
  PutFirst(&remote, remote_ipv4);
  if (local.empty()) return pairs;
  if (remote.empty()) pairs.push_back({local.front(), std::nullopt});
  // Diagonals of the table of all pairs.
  const size_t longest = std::max(local.size(), remote.size());
  std::vector<bool> seen(local.size() * remote.size());
  for (size_t i = 0; i < longest * remote.size() && pairs.size() < kMaxRails; ++i) {
    const size_t here = i % longest % local.size(), there = (i % longest + i / longest) % remote.size();
    if (seen[here * remote.size() + there]) continue;
    seen[here * remote.size() + there] = true;
    if (CanReach(local[here], remote[there])) pairs.push_back({local[here], remote[there]});
  }
  return pairs;
}

size_t ChooseRail(std::span<const RailLoad> rails, int memory_node) {
  auto cost = [&](const RailLoad& rail) {
    const bool far = memory_node >= 0 && rail.numa_node >= 0 && rail.numa_node != memory_node;
    return std::pair(rail.bytes + (far ? kFarCost : 0), rail.own);
  };
  return static_cast<size_t>(
      std::min_element(rails.begin(), rails.end(),
                       [&](const RailLoad& a, const RailLoad& b) { return cost(a) < cost(b); }) -
      rails.begin());
}

int NumaNodeOf(const std::vector<MemorySpan>& memory) {
  if (memory.empty()) return -1;
  if (const auto& device = memory.front().region->device()) return device->numa_node();
  int node = -1;
  const long result =
      ::syscall(SYS_get_mempolicy, &node, nullptr, 0, memory.front().data(), MPOL_F_NODE | MPOL_F_ADDR);
  return result == 0 ? node : -1;
}

}  // namespace nacre::verbs
