// Peers whose pushes wait until what they may depend on is kept (mds_front.h, Authority::WhenKept).
#pragma once

#include <absl/container/flat_hash_map.h>

#include <memory>
#include <mutex>

#include "rpc/mds_front.h"
#include "rpc/metadata_channel.h"

namespace nacre {

// Knows the withheld form of each peer while somebody has it: an MDS tells its peers apart by who they are.
// Thread-safe. Lives in a shared_ptr, which the peers share.
class WithheldPeers : public std::enable_shared_from_this<WithheldPeers> {
 public:
  // Pushes to it, and the end of its stream, reach `peer` in their order, each when it is kept. Where it
  // never will be, the stream ends all the same and pushes are dropped.
  std::shared_ptr<MetadataPeer> Of(const std::shared_ptr<MetadataPeer>& peer,
                                   const std::shared_ptr<Authority>& authority);

 private:
  class WithheldPeer;
  void Forget(const MetadataPeer* peer);

  std::mutex mutex_;
  absl::flat_hash_map<const MetadataPeer*, std::weak_ptr<WithheldPeer>> peers_;
};

}  // namespace nacre
