#include <algorithm>
#include <cerrno>

#include "rpc/convert.h"
#include "server/object/chain.h"
#include "server/object/change_proto.h"
#include "server/object/ops/ops.h"

namespace nacre::ost {
namespace {

constexpr uint32_t kMaxListed = 8192;

Task<Status> ListInDoubt(OpContext context) {
  if (context.target->chain == nullptr) co_return ErrnoError(EINVAL, "this OST has one member here");
  co_await context.target->store->journal().AwaitCommits();  // those of epochs before that had begun
  proto::ListObjectsReply* reply = context.reply->mutable_list();
  const std::set<ObjectId> objects = context.target->chain->InDoubtObjects();
  reply->set_end(objects.size() <= kMaxListed);
  if (!reply->end()) co_return OkStatus();
  for (const ObjectId& id : objects) {
    CO_ASSIGN_OR_RETURN(std::optional<ObjectRecord> record, context.target->store->Stat(id));
    proto::ListedObject* out = reply->add_objects();
    *out->mutable_object() = ToProto(id);
    *out->mutable_version() = ToProto(VersionOf(record));
  }
  co_return OkStatus();
}

}  // namespace

Task<Status> ListOp(OpContext context) {
  const proto::ListObjects& request = context.request->list();
  if (request.in_doubt()) co_return co_await ListInDoubt(context);
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
    *out->mutable_version() = ToProto(object.record.full_version());
  }
  reply->set_end(objects.size() < limit);
  co_return OkStatus();
}

}  // namespace nacre::ost
