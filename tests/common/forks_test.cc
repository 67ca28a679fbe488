#include "common/forks.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace nacre {
namespace {

TEST(Forks, AChildAndItsChildHaveOtherNumbers) {
  const uint64_t here = ForksSoFar();
  const pid_t child = ::fork();
  if (child == 0) {
    const pid_t grandchild = ::fork();
    if (grandchild == 0) ::_exit(ForksSoFar() == here + 2 ? 0 : 1);
    int status = -1;
    ::waitpid(grandchild, &status, 0);
    ::_exit(status == 0 && ForksSoFar() == here + 1 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(ForksSoFar(), here) << "the parent is the same as before";
}

}  // namespace
}  // namespace nacre
