#include <cerrno>

#include "common/log.h"
#include "rpc/fence.h"
#include "server/object/ops/ops.h"

namespace nacre::ost {

Task<Status> FenceOp(OpContext context) {
  const proto::FenceSession& request = context.request->fence();
  std::vector<SessionId> sessions(request.more().begin(), request.more().end());
  sessions.push_back(request.session());
  const size_t count = sessions.size();
  Status status = co_await context.target->sessions->Fence(std::move(sessions));
  // No request of these sessions is handed on any more. A member that is not the head does not hand on the
  // fence either: the head is told as well.
  const bool alone = context.request->chain_epoch() == 0 && !IsHead(context);
  if (status.ok() && !alone) status = co_await HandOnRequest(context);
  if (status.ok()) {
    const bool all = IsAllBelow(request.session());
    LogInfo("OST %d: session%s %d %s fenced%s", context.target->store->superblock().index,
            all ? "s below" : "", all ? FirstServed(request.session()) : request.session(),
            all ? "are" : "is", count > 1 ? absl::StrFormat(", with %d others", count - 1) : "");
  }
  co_return status;
}

}  // namespace nacre::ost
