#include "api/call.h"

#include <absl/strings/str_format.h>

#include <atomic>

#include "common/forks.h"

namespace nacre::api {
namespace {

constexpr uint64_t kNever = UINT64_MAX;

thread_local std::string last_message;
std::atomic<uint64_t> threads_since{kNever};  // ForksSoFar

}  // namespace

int Answer(const Status& status) {
  if (status.ok()) return 0;
  last_message = std::string(status.message());
  return ToErrno(status);
}

const char* LastMessage() { return last_message.c_str(); }

Status CheckProcess() {
  const uint64_t since = threads_since.load(std::memory_order_relaxed);
  if (since == kNever || since == ForksSoFar()) return OkStatus();
  return ErrnoError(
      EPERM,
      "this process was forked from one that uses libnacre, whose threads it does not have: fork "
      "before the first client is opened, or exec");
}

void WatchForForks() { threads_since = ForksSoFar(); }

StatusOr<size_t> Stride(const void* array, size_t count, const char* name) {
  if (count == 0) return 0;
  if (array == nullptr) return ErrnoError(EINVAL, absl::StrFormat("%s is null", name));
  const uint64_t size = *static_cast<const uint64_t*>(array);
  if (size >= sizeof(uint64_t) && size <= kMaxStructSize && size % sizeof(uint64_t) == 0) return size;
  return ErrnoError(
      EINVAL, absl::StrFormat("%s[0].struct_size is %d: begin with the structure's _INIT macro", name, size));
}

void CopyText(std::string_view text, char* to, size_t room) {
  size_t length = std::min(text.size(), room - 1);
  auto continues = [&](size_t at) { return at < text.size() && (text[at] & 0xC0) == 0x80; };
  while (length > 0 && continues(length)) --length;
  std::memcpy(to, text.data(), length);
  to[length] = '\0';
}

}  // namespace nacre::api
