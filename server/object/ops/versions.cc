#include <cerrno>

#include "rpc/convert.h"
#include "server/object/change_proto.h"
#include "server/object/ops/ops.h"

namespace nacre::ost {

Task<Status> VersionsOp(OpContext context) {
  const auto& ranges = context.request->versions().ranges();
  if (ranges.size() > kMaxRanges) {
    co_return ErrnoError(EINVAL,
                         absl::StrCat(ranges.size(), " ranges: at most ", kMaxRanges, " in one request"));
  }
  proto::VersionsOfReply* reply = context.reply->mutable_versions();
  for (const proto::ObjectRange& range : ranges) {
    CO_ASSIGN_OR_RETURN(
        const ObjectVersion version,
        co_await context.target->store->VersionAt(FromProto(range.object()), range.offset(), range.length()));
    *reply->add_versions() = ToProto(version);
  }
  co_return OkStatus();
}

}  // namespace nacre::ost
