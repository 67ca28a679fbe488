#include <cerrno>

#include "common/log.h"
#include "server/object/ops/ops.h"

namespace nacre::ost {

Task<Status> FenceOp(OpContext context) {
  if (context.request->session() != 0) {
    co_return ErrnoError(
        EPERM, absl::StrCat("session ", context.request->session(), " may not fence another; the MDS does"));
  }
  SessionId session = context.request->fence().session();
  Status status = co_await context.target->sessions->Fence(session);
  if (status.ok())
    LogInfo("OST %d: session %d is fenced", context.target->store->superblock().index, session);
  co_return status;
}

}  // namespace nacre::ost
