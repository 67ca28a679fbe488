// Space that an OST has granted to a client: what is held back under it has its place for certain, and what a
// client does not use is there for the others.
#include "client/inode.h"
#include "tests/client/harness.h"

namespace nacre::client {
namespace {

class Grants : public testing::Test {
 protected:
  static HarnessOptions OneSmallOst() {
    HarnessOptions options;
    options.osses = options.osts_per_oss = 1;
    options.ost_blocks = 16 << 10;  // 64 MiB
    options.metadata.inline_limit = 0;
    return options;
  }
  // Each client works in a directory of its own, and keeps the lease of it.
  Grants() : harness_(OneSmallOst()), mine_(harness_.Mount()), theirs_(harness_.Mount()) {
    file_ = mine_->Create("f", O_RDWR, mine_->Mkdir("mine"));
    other_ = theirs_->Create("f", O_RDWR, theirs_->Mkdir("theirs"));
    harness_.world.RunFor(5s);
  }

  // As the MDS hears it from the OST, without what is promised to anybody.
  uint64_t Free() {
    harness_.world.RunFor(5s);  // heartbeats tell the MDS
    auto space = theirs_->Await(theirs_->fs().Statfs(theirs_->caller));
    EXPECT_TRUE(space.ok()) << space.status();
    return space.ok() ? space->free_bytes() : 0;
  }
  void FillByOther() {
    const std::string piece = Pattern(2, kMiB);
    for (uint64_t at = 0; at < 128; ++at) {
      if (!theirs_->TryWrite(other_, at * kMiB, piece).ok() || !theirs_->Fsync(other_).ok()) return;
    }
    FAIL() << "the OST has no end";
  }
  void Cut() {
    const int node = mine_->process()->node(), oss = harness_.cluster.oss(0);
    harness_.network.Cut(node, oss);
    harness_.network.Cut(oss, node);
  }

  Harness harness_;
  std::unique_ptr<Mounted> mine_, theirs_;
  HandlePtr file_, other_;
};

TEST_F(Grants, AreGivenBackByAClientThatIsIdle) {
  const uint64_t before = Free();
  mine_->Write(file_, 0, Pattern(1, kMiB));
  ASSERT_TRUE(mine_->Fsync(file_).ok());
  harness_.world.RunFor(15s);  // the OST would take them back by itself, but later
  EXPECT_GE(Free() + 2 * kMiB, before);
}

// The client could not give its grant back when it became idle, since it was in use by data that did not come
// through. Later the OST has taken it back, and others have the space.
TEST_F(Grants, AreNotCountedOnWhenTheOstMayHaveTakenThemBack) {
  mine_->Write(file_, 0, Pattern(1, kMiB));
  Cut();
  harness_.world.RunFor(15s);
  harness_.network.Heal();
  ASSERT_TRUE(mine_->Fsync(file_).ok());
  harness_.world.RunFor(100s);
  FillByOther();
  const auto written = mine_->TryWrite(file_, kMiB, Pattern(3, 8 * kMiB));
  if (written.ok()) {
    EXPECT_LT(*written, 8 * kMiB);
  } else {
    EXPECT_THAT(written.status(), HasErrno(ENOSPC));
  }
  EXPECT_TRUE(mine_->Fsync(file_).ok()) << "what was answered had no place";
}

}  // namespace
}  // namespace nacre::client
