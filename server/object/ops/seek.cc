#include "rpc/convert.h"
#include "server/object/ops/ops.h"

namespace nacre::ost {

Task<Status> SeekOp(OpContext context) {
  const proto::SeekObject& request = context.request->seek();
  StatusOr<std::optional<uint64_t>> found =
      co_await context.target->store->Seek(FromProto(request.object()), request.offset(), request.hole());
  if (!found.ok()) co_return found.status();
  proto::SeekObjectReply* reply = context.reply->mutable_seek();
  reply->set_found(found->has_value());
  if (found->has_value()) reply->set_offset(**found);
  co_return OkStatus();
}

}  // namespace nacre::ost
