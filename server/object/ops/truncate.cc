#include "rpc/convert.h"
#include "server/object/ops/ops.h"

namespace nacre::ost {

Task<Status> TruncateOp(OpContext context) {
  const proto::TruncateObject& request = context.request->truncate();
  StatusOr<int64_t> delta =
      co_await context.target->store->Truncate(FromProto(request.object()), request.size(), context.by);
  if (!delta.ok()) co_return delta.status();
  context.reply->mutable_write()->set_blocks_delta(*delta * static_cast<int64_t>(kBlockSize / 512));
  co_return OkStatus();
}

}  // namespace nacre::ost
