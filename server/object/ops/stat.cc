#include "rpc/convert.h"
#include "server/object/change_proto.h"
#include "server/object/ops/ops.h"

namespace nacre::ost {

Task<Status> StatOp(OpContext context) {
  CO_ASSIGN_OR_RETURN(std::optional<ObjectRecord> record,
                      context.target->store->Stat(FromProto(context.request->stat().object())));
  proto::StatObjectReply* reply = context.reply->mutable_stat();
  reply->set_exists(record.has_value());
  if (!record) co_return OkStatus();
  reply->set_size(record->size);
  reply->set_blocks(record->blocks * (kBlockSize / 512));
  *reply->mutable_parent() = ToProto(record->parent);
  *reply->mutable_version() = ToProto(record->full_version());
  co_return OkStatus();
}

}  // namespace nacre::ost
