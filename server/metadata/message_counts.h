// How often clients have asked this MDS for what, and how often it has asked them for leases, since its start
// (nacre status). Thread-safe.
#pragma once

#include <array>
#include <atomic>

#include "proto/cluster.pb.h"
#include "proto/metadata.pb.h"

namespace nacre::mds {

class MessageCounts {
 public:
  void CountRequest(const proto::MetadataRequest& request);
  void CountRevocation() { revocations_.fetch_add(1, std::memory_order_relaxed); }
  // A request waits for others to give leases back.
  void CountConflict() { conflicts_.fetch_add(1, std::memory_order_relaxed); }

  void Show(proto::ClusterStatus* status) const;

 private:
  std::array<std::atomic<uint64_t>, 64> requests_{};  // by the operation's number in MetadataRequest
  std::atomic<uint64_t> revocations_{0}, conflicts_{0};
};

}  // namespace nacre::mds
