#include "server/object/ops/ops.h"

namespace nacre::ost {

Task<Status> SyncOp(OpContext context) {
  CO_RETURN_IF_ERROR(co_await HandOnRequest(context));
  co_return co_await context.target->store->Sync();
}

}  // namespace nacre::ost
