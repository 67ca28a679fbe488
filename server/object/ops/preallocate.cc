#include "rpc/convert.h"
#include "server/object/ops/ops.h"

namespace nacre::ost {

Task<Status> PreallocateOp(OpContext context) {
  const proto::PreallocateObject& request = context.request->preallocate();
  Fid parent = FromProto(request.parent());
  StatusOr<int64_t> delta = co_await context.target->store->Preallocate(
      FromProto(request.object()), parent, request.offset(), request.length(), context.by);
  if (!delta.ok()) co_return delta.status();
  context.reply->mutable_write()->set_blocks_delta(*delta * static_cast<int64_t>(kBlockSize / 512));
  co_return OkStatus();
}

}  // namespace nacre::ost
