#include "compat/nixl/answers.h"

#include <cerrno>
#include <cstdio>

namespace nacre::nixl {

nixl_status_t StatusOf(int code) {
  switch (code) {
    case 0:
      return NIXL_SUCCESS;
    case ENOENT:
      return NIXL_ERR_NOT_FOUND;
    case EINVAL:
    case EBADF:
    case EFAULT:
      return NIXL_ERR_INVALID_PARAM;
    case EXDEV:
      return NIXL_ERR_MISMATCH;
    case EACCES:
    case EPERM:
      return NIXL_ERR_NOT_ALLOWED;
    case ENOTSUP:
      return NIXL_ERR_NOT_SUPPORTED;
    case ECANCELED:
      return NIXL_ERR_CANCELED;
    default:
      return NIXL_ERR_BACKEND;
  }
}

void Say(const std::string& words) { std::fprintf(stderr, "NIXL's plugin NACRE: %s\n", words.c_str()); }

nixl_status_t Fail(nixl_status_t status, const std::string& words) {
  Say(words);
  return status;
}

nixl_status_t Fail(const Error& error, const std::string& what) {
  return Fail(StatusOf(error.code()), what + ": " + error.message());
}

}  // namespace nacre::nixl
