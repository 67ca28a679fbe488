#include "common/status.h"

#include <gtest/gtest.h>

#include <cerrno>

namespace nacre {
namespace {

TEST(Status, KeepsItsErrno) {
  for (int error : {ENOENT, EACCES, EPERM, ENOTEMPTY, ESTALE, EIO, 4711}) {
    EXPECT_EQ(ToErrno(ErrnoError(error, "x")), error);
  }
  EXPECT_EQ(ToErrno(OkStatus()), 0);
}

TEST(Status, EveryCodeHasAnErrno) {
  EXPECT_EQ(ToErrno(absl::DataLossError("")), EIO);
  EXPECT_EQ(ToErrno(absl::NotFoundError("")), ENOENT);
  EXPECT_EQ(ToErrno(absl::UnauthenticatedError("")), EIO);
}

TEST(Status, OnlyLostServersAreRetried) {
  EXPECT_TRUE(IsRetryable(ErrnoError(ECONNRESET, "")));
  EXPECT_TRUE(IsRetryable(absl::UnavailableError("")));
  EXPECT_FALSE(IsRetryable(ErrnoError(EIO, "")));
  EXPECT_FALSE(IsRetryable(ErrnoError(EAGAIN, "")));
  EXPECT_EQ(ErrnoName(ENOSPC), "ENOSPC");
}

}  // namespace
}  // namespace nacre
