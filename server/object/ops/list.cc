#include <algorithm>

#include "rpc/convert.h"
#include "server/object/ops/ops.h"

namespace nacre::ost {
namespace {

constexpr uint32_t kMaxListed = 8192;

}  // namespace

Task<Status> ListOp(OpContext context) {
  const proto::ListObjects& request = context.request->list();
  uint32_t limit = std::clamp<uint32_t>(request.limit(), 1, kMaxListed);
  std::optional<ObjectId> after;
  if (request.has_after()) after = FromProto(request.after());
  CO_ASSIGN_OR_RETURN(std::vector<ObjectStore::Listed> objects, context.target->store->List(after, limit));
  proto::ListObjectsReply* reply = context.reply->mutable_list();
  for (const ObjectStore::Listed& object : objects) {
    proto::ListedObject* out = reply->add_objects();
    *out->mutable_object() = ToProto(object.id);
    *out->mutable_parent() = ToProto(object.record.parent);
    out->set_size(object.record.size);
    out->set_blocks(object.record.blocks * (kBlockSize / 512));
    out->mutable_version()->set_epoch(object.record.group_generation);
    out->mutable_version()->set_changes(object.record.version);
  }
  reply->set_end(objects.size() < limit);
  co_return OkStatus();
}

}  // namespace nacre::ost
