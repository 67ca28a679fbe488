#include "api/outcome.h"

#include "api/call.h"

namespace nacre::api {

void SetError(const Status& status, nacre_result* result) {
  result->error = ToErrno(status);
  result->bytes = 0;
  result->verification = NACRE_VERIFIED_NONE;
  result->path[0] = '\0';
  CopyText({status.message().data(), status.message().size()}, result->message, sizeof result->message);
}

ExtentOutcome Failed(const Status& status) {
  ExtentOutcome outcome{.status = status};
  SetError(status, &outcome.result);
  return outcome;
}

}  // namespace nacre::api
