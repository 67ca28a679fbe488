#include "server/object/ops/ops.h"

namespace nacre::ost {

Task<Status> SyncOp(OpContext context) { co_return co_await context.target->store->Sync(); }

}  // namespace nacre::ost
