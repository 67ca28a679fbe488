// Errors as values, for nacre.hpp: an Error, and an Expected of something for want of which there is an
// Error.
#pragma once

#include <nacre/nacre.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <variant>

namespace nacre {
inline namespace v1 {

// An errno value and the reason in words; false: none.
class [[nodiscard]] Error {
 public:
  Error() = default;
  Error(int code, std::string message) : code_(code), message_(std::move(message)) {}
  // Of a function of nacre.h that has just returned `code` in this thread.
  static Error last(int code) { return code == 0 ? Error() : Error(code, nacre_error_message()); }

  explicit operator bool() const { return code_ != 0; }
  int code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  int code_ = 0;
  std::string message_;
};

// A T, or the Error for want of which there is none. Whoever takes the T of an Expected that has none ends
// the program with the Error's words on stderr: look first, or use value_or.
template <typename T>
class [[nodiscard]] Expected {
 public:
  Expected(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Expected(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  explicit operator bool() const { return has_value(); }
  bool has_value() const { return state_.index() == 0; }
  T& value() & { return *there(std::get_if<0>(&state_)); }
  const T& value() const& { return *there(std::get_if<0>(&state_)); }
  T&& value() && { return std::move(*there(std::get_if<0>(&state_))); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  template <typename U>
  T value_or(U&& other) const& {
    return has_value() ? value() : static_cast<T>(std::forward<U>(other));
  }
  template <typename U>
  T value_or(U&& other) && {
    return has_value() ? std::move(*this).value() : static_cast<T>(std::forward<U>(other));
  }
  Error error() const { return has_value() ? Error() : *std::get_if<1>(&state_); }

 private:
  template <typename Pointer>
  Pointer there(Pointer value) const {
    if (value != nullptr) return value;
    const Error why = error();
    std::fprintf(stderr, "nacre: the value of an Expected was used that has none: errno %d: %s\n", why.code(),
                 why.message().c_str());
    std::abort();
  }

  std::variant<T, Error> state_;
};

}  // namespace v1
}  // namespace nacre
