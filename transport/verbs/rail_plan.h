// Which ports of two machines are joined to each other, and which of the rails that come of it a call takes.
// Pure functions, but for what they ask the kernel about memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "transport/transport.h"
#include "transport/verbs/message.h"
#include "transport/verbs/port.h"

namespace nacre::verbs {

inline constexpr size_t kMaxRails = 8;  // between two processes

// A port here and one there, between which a queue pair is to be.
struct RailPair {
  PortInfo local;
  std::optional<RemotePort> remote;  // none: the server chooses

  // "mlx5_0 port 1 to 10.0.0.7".
  std::string name() const;
};

// The best pairs first, at most kMaxRails: the one whose ports have the addresses of the connection that the
// two sides talk over already (host order; 0: not known), then such that each port occurs before one occurs
// twice. `remote`: empty if the server does not tell its ports. No pair: the sides have no link layer in
// common.
std::vector<RailPair> PlanRails(std::vector<PortInfo> local, std::vector<RemotePort> remote,
                                uint32_t local_ipv4, uint32_t remote_ipv4);

// The traits by which a call chooses a rail.
struct RailLoad {
  uint64_t bytes = 0;  // of calls under way
  int numa_node = -1;  // of its device
  uint64_t own = 0;    // the part of `bytes` that this connection has
};

// The least loaded rail; one that is not near the memory's NUMA node (-1: not known) only if the near ones
// have much more to do. There must be one.
size_t ChooseRail(std::span<const RailLoad> rails, int memory_node);

// The node of the first piece, or of the device whose memory it is; -1: not known. Asks the kernel.
int NumaNodeOf(const std::vector<MemorySpan>& memory);

}  // namespace nacre::verbs
