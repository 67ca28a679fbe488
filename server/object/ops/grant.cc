#include "server/object/ops/ops.h"

namespace nacre::ost {

// Every reply says what the grant is, so this one needs no field of its own.
Task<Status> GrantOp(OpContext context) {
  co_await context.target->sessions->Reserve(context.request->session(), context.request->grant().want());
  co_return OkStatus();
}

}  // namespace nacre::ost
