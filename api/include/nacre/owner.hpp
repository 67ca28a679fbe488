// Handles of nacre.h with an owner, for nacre.hpp.
#pragma once

#include <nacre/nacre.h>
#include <nacre/expected.hpp>

#include <utility>

namespace nacre {
inline namespace v1 {
namespace detail {

// Owns a handle of nacre.h.
template <typename Handle, int (*Close)(Handle)>
class Owner {
 public:
  Owner() = default;
  explicit Owner(Handle handle) : handle_(handle) {}
  Owner(Owner&& other) noexcept : handle_(std::exchange(other.handle_, Handle{})) {}
  Owner& operator=(Owner&& other) noexcept {
    if (this != &other) {
      (void)close();
      handle_ = std::exchange(other.handle_, Handle{});
    }
    return *this;
  }
  ~Owner() { (void)close(); }

  Handle get() const { return handle_; }
  explicit operator bool() const { return handle_.id != 0; }
  Error close() {
    if (handle_.id == 0) return {};
    return Error::last(Close(std::exchange(handle_, Handle{})));
  }

 private:
  Handle handle_{};
};

}  // namespace detail

}  // namespace v1
}  // namespace nacre
