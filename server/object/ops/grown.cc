// ListGrown and SettleGrown.
#include <algorithm>
#include <cerrno>

#include "rpc/convert.h"
#include "server/object/ops/ops.h"

namespace nacre::ost {
namespace {

constexpr uint32_t kMaxGrownListed = 4096;

}  // namespace

Task<Status> ListGrownOp(OpContext context) {
  const proto::ListGrown& request = context.request->list_grown();
  const uint32_t limit = std::clamp<uint32_t>(request.limit(), 1, kMaxGrownListed);
  std::optional<Growth> after;
  if (request.has_after()) after = Growth{request.after().session(), FromProto(request.after().object())};
  CO_ASSIGN_OR_RETURN(std::vector<ObjectStore::Grown> grown,
                      context.target->store->ListGrown(request.session(), after, limit));
  proto::ListGrownReply* reply = context.reply->mutable_list_grown();
  for (const ObjectStore::Grown& one : grown) {
    proto::GrownObject* out = reply->add_objects();
    out->set_session(one.growth.session);
    *out->mutable_object() = ToProto(one.growth.object);
    out->set_exists(one.record.has_value());
    if (!one.record) continue;
    *out->mutable_parent() = ToProto(one.record->parent);
    out->set_size(one.record->size);
    out->set_version(one.record->version);
  }
  reply->set_end(grown.size() < limit);
  co_return OkStatus();
}

Task<Status> SettleGrownOp(OpContext context) {
  for (const proto::GrownObject& object : context.request->settle_grown().objects()) {
    Growth growth{object.session(), FromProto(object.object())};
    CO_RETURN_IF_ERROR(co_await context.target->store->Settle(growth, object.version()));
  }
  co_return co_await HandOnRequest(context);
}

}  // namespace nacre::ost
