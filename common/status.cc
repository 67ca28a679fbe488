#include "common/status.h"

#include <absl/strings/cord.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>

#include <array>
#include <cerrno>
#include <string>

namespace nacre {
namespace {

constexpr absl::string_view kErrnoPayload = "nacre.errno";

struct ErrnoRow {
  int error;
  const char* name;
  absl::StatusCode code;
  bool retryable;
};

// The first row of a status code is the errno of statuses that carry none.
constexpr std::array kErrnoTable = std::to_array<ErrnoRow>({
    {EIO, "EIO", absl::StatusCode::kDataLoss, false},
    {EIO, "EIO", absl::StatusCode::kInternal, false},
    {EIO, "EIO", absl::StatusCode::kUnknown, false},
    {ENOENT, "ENOENT", absl::StatusCode::kNotFound, false},
    {EEXIST, "EEXIST", absl::StatusCode::kAlreadyExists, false},
    {EINVAL, "EINVAL", absl::StatusCode::kInvalidArgument, false},
    {EPERM, "EPERM", absl::StatusCode::kPermissionDenied, false},
    {EACCES, "EACCES", absl::StatusCode::kPermissionDenied, false},
    {ENOTCONN, "ENOTCONN", absl::StatusCode::kUnavailable, true},
    {ECONNREFUSED, "ECONNREFUSED", absl::StatusCode::kUnavailable, true},
    {ECONNRESET, "ECONNRESET", absl::StatusCode::kUnavailable, true},
    {EHOSTUNREACH, "EHOSTUNREACH", absl::StatusCode::kUnavailable, true},
    {ENETUNREACH, "ENETUNREACH", absl::StatusCode::kUnavailable, true},
    {EPIPE, "EPIPE", absl::StatusCode::kUnavailable, true},
    {ESHUTDOWN, "ESHUTDOWN", absl::StatusCode::kUnavailable, true},
    {ETIMEDOUT, "ETIMEDOUT", absl::StatusCode::kDeadlineExceeded, true},
    {EINTR, "EINTR", absl::StatusCode::kCancelled, false},
    {ECANCELED, "ECANCELED", absl::StatusCode::kCancelled, false},
    {EAGAIN, "EAGAIN", absl::StatusCode::kAborted, false},
    {EDEADLK, "EDEADLK", absl::StatusCode::kAborted, false},
    {ENOSPC, "ENOSPC", absl::StatusCode::kResourceExhausted, false},
    {EDQUOT, "EDQUOT", absl::StatusCode::kResourceExhausted, false},
    {ENOMEM, "ENOMEM", absl::StatusCode::kResourceExhausted, false},
    {EMFILE, "EMFILE", absl::StatusCode::kResourceExhausted, false},
    {EMLINK, "EMLINK", absl::StatusCode::kResourceExhausted, false},
    {EOPNOTSUPP, "EOPNOTSUPP", absl::StatusCode::kUnimplemented, false},
    {ENOSYS, "ENOSYS", absl::StatusCode::kUnimplemented, false},
    {ERANGE, "ERANGE", absl::StatusCode::kOutOfRange, false},
    {EFBIG, "EFBIG", absl::StatusCode::kOutOfRange, false},
    {EOVERFLOW, "EOVERFLOW", absl::StatusCode::kOutOfRange, false},
    {ENOTEMPTY, "ENOTEMPTY", absl::StatusCode::kFailedPrecondition, false},
    {ENOTDIR, "ENOTDIR", absl::StatusCode::kFailedPrecondition, false},
    {EISDIR, "EISDIR", absl::StatusCode::kFailedPrecondition, false},
    {EXDEV, "EXDEV", absl::StatusCode::kFailedPrecondition, false},
    {ELOOP, "ELOOP", absl::StatusCode::kFailedPrecondition, false},
    {EBUSY, "EBUSY", absl::StatusCode::kFailedPrecondition, false},
    {EROFS, "EROFS", absl::StatusCode::kFailedPrecondition, false},
    {ESTALE, "ESTALE", absl::StatusCode::kFailedPrecondition, false},
    {EBADMSG, "EBADMSG", absl::StatusCode::kFailedPrecondition, false},
    {EBADF, "EBADF", absl::StatusCode::kFailedPrecondition, false},
    {ETXTBSY, "ETXTBSY", absl::StatusCode::kFailedPrecondition, false},
    {ENODEV, "ENODEV", absl::StatusCode::kNotFound, false},
    {ENXIO, "ENXIO", absl::StatusCode::kNotFound, false},
    {ENODATA, "ENODATA", absl::StatusCode::kNotFound, false},
    {ENAMETOOLONG, "ENAMETOOLONG", absl::StatusCode::kInvalidArgument, false},
    {EILSEQ, "EILSEQ", absl::StatusCode::kInvalidArgument, false},
    {EPROTO, "EPROTO", absl::StatusCode::kInvalidArgument, false},
    {EFAULT, "EFAULT", absl::StatusCode::kInvalidArgument, false},
    {EADDRINUSE, "EADDRINUSE", absl::StatusCode::kFailedPrecondition, false},
    {EOWNERDEAD, "EOWNERDEAD", absl::StatusCode::kFailedPrecondition, false},
});

const ErrnoRow* FindErrno(int error) {
  for (const ErrnoRow& row : kErrnoTable) {
    if (row.error == error) return &row;
  }
  return nullptr;
}

const ErrnoRow* FindCode(absl::StatusCode code) {
  for (const ErrnoRow& row : kErrnoTable) {
    if (row.code == code) return &row;
  }
  return nullptr;
}

}  // namespace

Status ErrnoError(int error, std::string_view message) {
  const ErrnoRow* row = FindErrno(error);
  Status status(row != nullptr ? row->code : absl::StatusCode::kUnknown, AbslView(message));
  status.SetPayload(kErrnoPayload, absl::Cord(absl::StrCat(error)));
  return status;
}

int ToErrno(const Status& status) {
  if (status.ok()) return 0;
  if (auto payload = status.GetPayload(kErrnoPayload)) {
    int error = 0;
    if (absl::SimpleAtoi(std::string(*payload), &error) && error != 0) return error;
  }
  const ErrnoRow* row = FindCode(status.code());
  return row != nullptr ? row->error : EIO;
}

bool IsRetryable(const Status& status) {
  if (status.ok()) return false;
  const ErrnoRow* row = FindErrno(ToErrno(status));
  return row != nullptr && row->retryable;
}

std::string ErrnoName(int error) {
  const ErrnoRow* row = FindErrno(error);
  return row != nullptr ? row->name : absl::StrCat("errno ", error);
}

}  // namespace nacre
