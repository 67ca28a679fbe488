// The frame of every function of nacre.h: the check that this process may call at all, the thread's last
// error, and the caller's structures, whose size says how much of them there is.
#pragma once

#include <absl/strings/str_format.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.h"
#include "common/status.h"

namespace nacre::api {

inline constexpr Duration kLongWait = std::chrono::hours(24 * 365);  // what can be added to now

// Notes the message for nacre_error_message; the errno value.
int Answer(const Status& status);
const char* LastMessage();

// EPERM in a process that was forked after the library's threads were started: it has none of them.
Status CheckProcess();
// From now on.
void WatchForForks();

// The largest size that a structure of a newer version is taken to have; beyond it the size was never set.
inline constexpr uint64_t kMaxStructSize = 64 << 10;

// Copies what there is of the caller's structure; what an older caller does not know has its default. EINVAL:
// its size cannot be. ENOTSUP: it is a newer one and says something that this version does not know.
template <typename T>
Status ReadStruct(const T* from, uint64_t size, T* to) {
  if (size < sizeof(uint64_t) || size > kMaxStructSize || size % alignof(T) != 0) {
    return ErrnoError(EINVAL, absl::StrFormat("struct_size is %d: begin with the _INIT macro of the "
                                              "structure, or set it to its sizeof",
                                              size));
  }
  const auto* bytes = reinterpret_cast<const std::byte*>(from);
  const auto newer = std::span(bytes, size).subspan(std::min<uint64_t>(size, sizeof(T)));
  if (std::ranges::any_of(newer, [](std::byte byte) { return byte != std::byte{0}; })) {
    return ErrnoError(ENOTSUP,
                      absl::StrFormat("a structure of %d bytes asks for what this version of libnacre, "
                                      "which knows %d of them, cannot do",
                                      size, sizeof(T)));
  }
  std::memcpy(static_cast<void*>(to), from, std::min<uint64_t>(size, sizeof(T)));
  to->struct_size = sizeof(T);
  return OkStatus();
}
// Of options, which may be null.
template <typename T>
Status ReadOptions(const T* from, T* to) {
  if (from == nullptr) return OkStatus();
  return ReadStruct(from, from->struct_size, to);
}

// The distance from one element of the caller's array to the next: its first element's size. EINVAL.
StatusOr<size_t> Stride(const void* array, size_t count, const char* name);

// Copies of the elements of the caller's array.
template <typename T>
StatusOr<std::vector<T>> ReadArray(const T* from, size_t count, const char* name) {
  ASSIGN_OR_RETURN(const size_t stride, Stride(from, count, name));
  std::vector<T> elements(count);
  for (size_t i = 0; i < count; ++i) {
    const auto* bytes = reinterpret_cast<const std::byte*>(from) + i * stride;
    RETURN_IF_ERROR(ReadStruct(reinterpret_cast<const T*>(bytes), stride, &elements[i]));
  }
  return elements;
}

// The other way; the caller's size stays.
template <typename T>
void WriteStruct(const T& from, uint64_t size, void* to) {
  constexpr uint64_t kHead = sizeof(uint64_t);
  std::memcpy(static_cast<std::byte*>(to) + kHead, reinterpret_cast<const std::byte*>(&from) + kHead,
              std::min<uint64_t>(size, sizeof(T)) - kHead);
}

// As much of the text as there is room for, cut between characters, and a NUL.
void CopyText(std::string_view text, char* to, size_t room);

}  // namespace nacre::api
