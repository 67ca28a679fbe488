#include "server/object/ops/ops.h"

namespace nacre::ost {

Task<Status> StatfsOp(OpContext context) {
  StoreSpace space = context.target->store->GetSpace();
  proto::StatfsOstReply* reply = context.reply->mutable_statfs();
  reply->set_total_bytes(space.total_bytes);
  reply->set_free_bytes(space.free_bytes);
  reply->set_available_bytes(space.available_bytes);
  reply->set_objects(space.objects);
  co_return OkStatus();
}

}  // namespace nacre::ost
