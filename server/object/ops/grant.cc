#include "server/object/ops/ops.h"

namespace nacre::ost {

// What there is now stands in every reply.
Task<Status> GrantOp(OpContext context) {
  co_await context.target->sessions->Reserve(context.request->session(), context.request->grant().want());
  co_return OkStatus();
}

}  // namespace nacre::ost
