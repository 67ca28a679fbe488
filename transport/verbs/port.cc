#include "transport/verbs/port.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

namespace nacre::verbs {
namespace {

// Of a device. An answer of 64 KiB or more wraps around in the ioctl and comes back empty.
constexpr size_t kMaxGids = 1024;
static_assert(kMaxGids * sizeof(ibv_gid_entry) <= UINT16_MAX);
constexpr uint32_t kMinMessage = 4096;

class DeviceList {
 public:
  explicit DeviceList(const Ibverbs& ibverbs) : ibverbs_(ibverbs) {
    list_ = ibverbs.get_device_list(&count_);
    error_ = list_ == nullptr ? errno : 0;
  }
  ~DeviceList() {
    if (list_ != nullptr) ibverbs_.free_device_list(list_);
  }
  DeviceList(const DeviceList&) = delete;
  DeviceList& operator=(const DeviceList&) = delete;

  int error() const { return error_; }
  std::vector<ibv_device*> devices() const {
    return error_ == 0 ? std::vector<ibv_device*>(list_, list_ + count_) : std::vector<ibv_device*>();
  }

 private:
  const Ibverbs& ibverbs_;
  int count_ = 0;
  int error_ = 0;
  ibv_device** list_ = nullptr;
};

// How good a GID is for RoCE: routable ones that carry an IPv4 address first; 0: not usable.
int GidRank(const ibv_gid_entry& entry) {
  if (entry.gid_type != IBV_GID_TYPE_ROCE_V2) return 0;
  Gid gid;
  std::memcpy(gid.data(), entry.gid.raw, gid.size());
  if (GidIpv4(gid) != 0) return 3;
  const bool link_local = gid[0] == 0xfe && (gid[1] & 0xc0) == 0x80;
  return link_local ? 1 : 2;
}

using Gids = std::vector<ibv_gid_entry>;

// All of the device's in one go; empty if they cannot be had.
Gids ReadGids(const Ibverbs& ibverbs, ibv_context* context) {
  Gids gids(kMaxGids);
  const ssize_t count = ibverbs.query_gid_table(context, gids.data(), gids.size(), 0, sizeof gids[0]);
  gids.resize(static_cast<size_t>(std::max<ssize_t>(count, 0)));
  return gids;
}

void UseGid(const ibv_gid_entry& entry, PortInfo* info) {
  info->gid_index = static_cast<uint8_t>(entry.gid_index);
  std::memcpy(info->gid.data(), entry.gid.raw, info->gid.size());
}

bool ChooseRoceGid(const Gids& gids, PortInfo* info) {
  int best = 0;
  for (const ibv_gid_entry& entry : gids) {
    // A queue pair names it by eight bits.
    if (entry.port_num != info->port || entry.gid_index > UINT8_MAX || GidRank(entry) <= best) continue;
    best = GidRank(entry);
    UseGid(entry, info);
  }
  return best > 0;
}

bool TakeFirstGid(const Gids& gids, PortInfo* info) {
  for (const ibv_gid_entry& entry : gids) {
    if (entry.port_num != info->port || entry.gid_index != 0) continue;
    UseGid(entry, info);
    return true;
  }
  return false;
}

const char* StateName(ibv_port_state state) {
  switch (state) {
    case IBV_PORT_DOWN:
      return "down";
    case IBV_PORT_INIT:
      return "not configured yet (is a subnet manager running?)";
    case IBV_PORT_ARMED:
      return "armed, not active yet";
    default:
      return "not active";
  }
}

// Fills in what the port is, or says why it cannot be used.
std::optional<std::string> Examine(const Ibverbs& ibverbs, ibv_context* context, const Gids& gids,
                                   PortInfo* info) {
  ibv_port_attr attr;
  std::memset(&attr, 0, sizeof attr);  // the library may be older than the header and fill in less
  if (ibverbs.query_port(context, info->port, reinterpret_cast<_compat_ibv_port_attr*>(&attr)) != 0) {
    return "cannot be queried";
  }
  if (attr.state != IBV_PORT_ACTIVE) return absl::StrCat("is ", StateName(attr.state));
  info->lid = attr.lid;
  info->mtu = static_cast<uint8_t>(attr.active_mtu);
  info->max_message = attr.max_msg_sz;
  if (attr.max_msg_sz < kMinMessage)
    return absl::StrFormat("takes messages of %d bytes only", attr.max_msg_sz);
  if (attr.link_layer == IBV_LINK_LAYER_ETHERNET) {
    info->link = LinkLayer::kEthernet;
    if (ChooseRoceGid(gids, info)) return std::nullopt;
    return "has no RoCEv2 GID: does its network interface have an address?";
  }
  info->link = LinkLayer::kInfiniband;
  if (TakeFirstGid(gids, info)) return std::nullopt;
  return "has no GID";
}

// As the kernel knows it; -1 on machines with one node.
int NumaNode(const ibv_device& device) {
  int node = -1;
  std::ifstream(absl::StrCat(device.ibdev_path, "/device/numa_node")) >> node;
  return node;
}

// Adds the device's usable ports, and for the others the reasons.
void AddPorts(const Ibverbs& ibverbs, ibv_device* device, std::vector<PortInfo>* ports,
              std::vector<std::string>* reasons) {
  const std::string name = ibverbs.get_device_name(device);
  if (device->transport_type != IBV_TRANSPORT_IB) {
    reasons->push_back(absl::StrCat(name, " is neither InfiniBand nor RoCE"));
    return;
  }
  ibv_context* context = ibverbs.open_device(device);
  if (context == nullptr) {
    reasons->push_back(absl::StrCat(name, " cannot be opened: ", std::strerror(errno)));
    return;
  }
  ibv_device_attr attr;
  std::memset(&attr, 0, sizeof attr);
  if (ibverbs.query_device(context, &attr) != 0) {
    reasons->push_back(absl::StrCat(name, " cannot be queried"));
  }
  const Gids gids = ReadGids(ibverbs, context);
  for (uint8_t port = 1; port <= attr.phys_port_cnt; ++port) {
    PortInfo info;
    info.device = name;
    info.port = port;
    info.numa_node = NumaNode(*device);
    if (auto reason = Examine(ibverbs, context, gids, &info)) {
      reasons->push_back(absl::StrCat(info.name(), " ", *reason));
    } else {
      ports->push_back(std::move(info));
    }
  }
  ibverbs.close_device(context);
}

}  // namespace

std::string PortInfo::name() const { return absl::StrFormat("%s port %d", device, port); }

uint32_t GidIpv4(const Gid& gid) {
  static constexpr uint8_t kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  if (std::memcmp(gid.data(), kMapped, sizeof kMapped) != 0) return 0;
  return uint32_t{gid[12]} << 24 | uint32_t{gid[13]} << 16 | uint32_t{gid[14]} << 8 | gid[15];
}

StatusOr<std::vector<PortInfo>> FindPorts(const Ibverbs& ibverbs) {
  const DeviceList list(ibverbs);
  if (list.error() != 0) {
    return absl::UnavailableError(
        absl::StrCat("RDMA devices cannot be listed: ", std::strerror(list.error())));
  }
  std::vector<PortInfo> ports;
  std::vector<std::string> reasons;
  for (ibv_device* device : list.devices()) AddPorts(ibverbs, device, &ports, &reasons);
  if (!ports.empty()) return ports;
  if (reasons.empty()) return absl::UnavailableError("this machine has no RDMA device");
  return absl::UnavailableError(absl::StrJoin(reasons, "; "));
}

const PortInfo* ChoosePort(const std::vector<PortInfo>& ports, std::optional<LinkLayer> link,
                           uint32_t local_ipv4) {
  const PortInfo* first = nullptr;
  for (const PortInfo& port : ports) {
    if (link && port.link != *link) continue;
    if (local_ipv4 != 0 && GidIpv4(port.gid) == local_ipv4) return &port;
    if (first == nullptr) first = &port;
  }
  return first;
}

StatusOr<std::unique_ptr<DeviceContext>> DeviceContext::Open(const Ibverbs& ibverbs,
                                                             const std::string& device) {
  const DeviceList list(ibverbs);
  for (ibv_device* found : list.devices()) {
    if (device != ibverbs.get_device_name(found)) continue;
    ibv_context* context = ibverbs.open_device(found);
    if (context != nullptr) return std::unique_ptr<DeviceContext>(new DeviceContext(ibverbs, context));
    return absl::UnavailableError(
        absl::StrFormat("RDMA device %s cannot be opened: %s", device, std::strerror(errno)));
  }
  return absl::UnavailableError(absl::StrFormat("RDMA device %s is gone", device));
}

}  // namespace nacre::verbs
