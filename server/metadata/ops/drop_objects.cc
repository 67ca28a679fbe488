#include <algorithm>
#include <cerrno>

#include "rpc/convert.h"
#include "server/metadata/left_objects.h"
#include "server/metadata/ops/ops.h"

namespace nacre::mds {
namespace {

constexpr int kMostStripes = 65536;  // of a layout

Status CheckRequest(const Mds& mds, const proto::DropObjects& request) {
  if (request.object_sequence() == 0 || request.osts().empty() || request.osts_size() > kMostStripes) {
    return ErrnoError(EINVAL, absl::StrFormat("%d objects of sequence %x are to be dropped",
                                              request.osts_size(), request.object_sequence()));
  }
  const std::vector<OstIndex> known = mds.osts.Known();
  for (const uint32_t ost : request.osts()) {
    if (std::ranges::find(known, ost) == known.end() && !cluster::IsGone(mds.osts.UseOf(ost)))
      return ErrnoError(EINVAL, absl::StrFormat("there is no OST %d", ost));
  }
  return OkStatus();
}

}  // namespace

Task<Reply> DropObjects(const Op& op, const proto::DropObjects& request) {
  const MdsPtr mds = op.mds;
  CO_RETURN_IF_ERROR(CheckRequest(*mds, request));
  const Fid fid = FromProto(request.fid());
  Layout left = LayoutOfObjects(request.object_sequence(), {request.osts().begin(), request.osts().end()});
  FidLocks::Guard guard = co_await LockOne(*mds, fid);
  auto inode = mds->tables->GetInode(fid);
  if (!inode.ok() && !absl::IsNotFound(inode.status())) co_return inode.status();
  if (inode.ok() && (*inode)->layout.object_sequence == left.object_sequence) {
    co_return ErrnoError(ESTALE,
                         absl::StrFormat("objects %x are those of %s", left.object_sequence, fid.ToString()));
  }
  if (IsLeft(*mds, left.object_sequence)) co_return proto::MetadataReply{};  // they go when their time comes
  KvBatch batch;
  AddLeft(fid, left, &batch);
  CO_RETURN_IF_ERROR(co_await mds->tables->CommitBatch(std::move(batch)));
  Spawn(mds->env.executor, DestroyLeft(mds, fid, std::move(left)));
  co_return proto::MetadataReply{};
}

}  // namespace nacre::mds
