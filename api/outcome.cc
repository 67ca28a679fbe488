#include "api/outcome.h"

#include <mutex>
#include <set>
#include <string>

#include "api/call.h"

namespace nacre::api {

nacre_result ExtentOutcome::Result() const {
  nacre_result result = NACRE_RESULT_INIT;
  result.bytes = bytes;
  result.verification = verification;
  CopyText(path, result.path, sizeof result.path);
  if (status.ok()) return result;
  result.error = ToErrno(status);
  CopyText({status.message().data(), status.message().size()}, result.message, sizeof result.message);
  return result;
}

std::string_view KeepPath(std::string_view path) {
  static std::mutex mutex;
  static auto& kept = *new std::set<std::string, std::less<>>;  // threads may outlive static objects
  std::lock_guard lock(mutex);
  const auto known = kept.find(path);
  return known != kept.end() ? *known : *kept.emplace(path).first;
}

ExtentOutcome Failed(const Status& status) { return {.status = status}; }

}  // namespace nacre::api
