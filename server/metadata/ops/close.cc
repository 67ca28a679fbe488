#include "rpc/convert.h"
#include "server/metadata/ops/ops.h"

namespace nacre::mds {

Task<Reply> Close(const Op& op, const proto::Close& request) {
  Mds& mds = *op.mds;
  const Fid fid = FromProto(request.fid());
  mds.opens.Close(op.session->id, fid, request.count(), request.write());
  CO_RETURN_IF_ERROR(co_await DestroyIfForgotten(op.mds, fid));
  co_return proto::MetadataReply{};
}

}  // namespace nacre::mds
