#include "server/metadata/ops/ops.h"

namespace nacre::mds {
namespace {

// Bytes that an inode and its entry take in the store, roughly: says how many more there is room for.
constexpr uint64_t kBytesPerInode = 1024;
// A file over all OSTs takes whole stripes of most of them: what an OST has beyond a multiple of the usual
// stripe size could not be had by a file that is to take all that is available.
constexpr uint64_t kUsualStripe = 1 << 20;

}  // namespace

Task<Reply> Statfs(const Op& op) {
  proto::MetadataReply reply;
  proto::StatfsReply* out = reply.mutable_statfs();
  const proto::ClusterMap map = op.mds->osts.Map();
  for (const proto::OstState& ost : map.osts()) {
    out->set_total_bytes(out->total_bytes() + ost.info().total_bytes());
    out->set_free_bytes(out->free_bytes() + ost.info().available_bytes());
    const uint64_t available = ost.info().available_bytes();
    out->set_available_bytes(out->available_bytes() + available / kUsualStripe * kUsualStripe);
  }
  out->set_inodes(op.mds->tables->InodeCount());
  out->set_inodes_free(op.mds->env.store.GetSpace().free_bytes / kBytesPerInode);
  co_return reply;
}

}  // namespace nacre::mds
