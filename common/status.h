// Errors: absl::Status from end to end, and the one table that maps them to errno and says which may be
// retried. Thread-safe. A Status made by ErrnoError keeps its exact errno; ToErrno finds one for any other.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

#include <string>
#include <string_view>

namespace nacre {

using absl::OkStatus;
using absl::Status;
using absl::StatusOr;

// Debian's abseil has a string_view of its own. StrFormat takes std::string_view as it is; StrCat and Status
// want this.
inline absl::string_view AbslView(std::string_view text) { return {text.data(), text.size()}; }

// An error with this errno. The message names the offending value and, where there is something to do, what
// to do.
[[nodiscard]] Status ErrnoError(int error, std::string_view message);

// The errno that an application sees for this status; 0 for OK.
[[nodiscard]] int ToErrno(const Status& status);

// Whether the same request may succeed if it is sent again (server away, connection lost, timed out).
[[nodiscard]] bool IsRetryable(const Status& status);

// "ENOENT" for 2; "errno 4711" for what the table does not know.
[[nodiscard]] std::string ErrnoName(int error);

}  // namespace nacre

#define NACRE_CONCAT_INNER(a, b) a##b
#define NACRE_CONCAT(a, b) NACRE_CONCAT_INNER(a, b)

#define NACRE_RETURN_IF_ERROR_IMPL(ret, expr)             \
  do {                                                    \
    if (auto nacre_status = (expr); !nacre_status.ok()) { \
      ret ::nacre::Status(std::move(nacre_status));       \
    }                                                     \
  } while (false)
#define NACRE_ASSIGN_IMPL(ret, var, lhs, expr)                 \
  auto var = (expr);                                           \
  if (!var.ok()) ret ::nacre::Status(std::move(var).status()); \
  lhs = *std::move(var)

// In functions; the CO_ forms in coroutines (the expression may be a co_await).
#define RETURN_IF_ERROR(expr) NACRE_RETURN_IF_ERROR_IMPL(return, expr)
#define CO_RETURN_IF_ERROR(expr) NACRE_RETURN_IF_ERROR_IMPL(co_return, expr)
#define ASSIGN_OR_RETURN(lhs, expr) NACRE_ASSIGN_IMPL(return, NACRE_CONCAT(nacre_or_, __LINE__), lhs, expr)
#define CO_ASSIGN_OR_RETURN(lhs, expr) \
  NACRE_ASSIGN_IMPL(co_return, NACRE_CONCAT(nacre_or_, __LINE__), lhs, expr)
