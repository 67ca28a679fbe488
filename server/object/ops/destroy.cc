#include <cerrno>

#include "rpc/convert.h"
#include "server/object/ops/ops.h"

namespace nacre::ost {

Task<Status> DestroyOp(OpContext context) {
  int64_t delta = 0;
  for (const proto::ObjectId& object : context.request->destroy().objects()) {
    StatusOr<int64_t> changed = co_await context.target->store->Destroy(FromProto(object), context.by);
    if (!changed.ok()) co_return changed.status();
    delta += *changed;
  }
  context.reply->mutable_write()->set_blocks_delta(delta * static_cast<int64_t>(kBlockSize / 512));
  co_return OkStatus();
}

}  // namespace nacre::ost
