#include "daemon/cli/command.h"

#include <cerrno>
#include <cstdio>

namespace nacre::cli {

int Fail(const Status& status) {
  std::fprintf(stderr, "nacre: %s\n", std::string(status.message()).c_str());
  return ToErrno(status) == EINVAL ? kUsage : kFailure;
}

}  // namespace nacre::cli
