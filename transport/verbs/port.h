// Which RDMA ports this machine has and which of them can carry the data plane: found by what they are able
// to do (state, link layer, GID table), never by name. Stateless, thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/status.h"
#include "transport/verbs/ibverbs_library.h"

namespace nacre::verbs {

using Gid = std::array<uint8_t, 16>;

enum class LinkLayer : uint8_t { kInfiniband = 1, kEthernet = 2 };

struct PortInfo {
  std::string device;
  uint8_t port = 0;
  LinkLayer link = LinkLayer::kEthernet;
  uint8_t gid_index = 0;
  Gid gid{};
  uint16_t lid = 0;
  uint8_t mtu = 0;  // as enum ibv_mtu
  uint32_t max_message = 0;
  int numa_node = -1;  // that the device is nearest to; -1: not known, or there is only one

  std::string name() const;  // "rxe0 port 1"
};

// The IPv4 address inside a GID as a number in host order; 0 if there is none.
uint32_t GidIpv4(const Gid& gid);

// All usable ports. UNAVAILABLE if there are none: says for each that was found why it is not.
StatusOr<std::vector<PortInfo>> FindPorts(const Ibverbs& ibverbs);

// The port to use for a connection from this local IPv4 address (host order; 0: not known) to a peer with
// this link layer (none: any): the one that has the address, else the first. Null if none has the link layer.
const PortInfo* ChoosePort(const std::vector<PortInfo>& ports, std::optional<LinkLayer> link,
                           uint32_t local_ipv4);

// An open device, closed at destruction.
class DeviceContext {
 public:
  // UNAVAILABLE: it is not there (any more) or cannot be opened.
  static StatusOr<std::unique_ptr<DeviceContext>> Open(const Ibverbs& ibverbs, const std::string& device);
  ~DeviceContext() { ibverbs_.close_device(context_); }
  DeviceContext(const DeviceContext&) = delete;
  DeviceContext& operator=(const DeviceContext&) = delete;

  ibv_context* get() const { return context_; }
  ibv_context* operator->() const { return context_; }

 private:
  DeviceContext(const Ibverbs& ibverbs, ibv_context* context) : ibverbs_(ibverbs), context_(context) {}

  const Ibverbs& ibverbs_;
  ibv_context* const context_;
};

}  // namespace nacre::verbs
