#include "client/dirty_files.h"

#include "client/inode_table.h"
#include "tests/client/cache_fixture.h"

namespace nacre::client {
namespace {

class DirtyFilesTest : public CacheFixture {
 protected:
  DirtyFilesTest()
      : environment_{process_->executor(), harness_.world.clock(), process_->random(), *transport_, nullptr},
        inodes_(cache_, 1 << 20),
        files_(environment_, options_,
               {.crowded = [this] { ++crowded_; }, .due = [this] { ++due_; }, .idle = [this] { ++idle_; }}) {}

  void Pass(Duration time) { harness_.world.RunFor(time); }

  Options options_;  // write_behind: 5 s
  Environment environment_;
  InodeTable inodes_;
  int crowded_ = 0, due_ = 0, idle_ = 0;
  DirtyFiles files_;
};

TEST_F(DirtyFilesTest, ThoseThatHaveWaitedAreTakenFirstComeFirst) {
  const InodePtr first = inodes_.Get({1, 1, 0}), second = inodes_.Get({1, 2, 0});
  files_.List(first);
  files_.List(first);
  Pass(2s);
  files_.List(second);
  EXPECT_EQ(due_, 0);
  Pass(1s);
  EXPECT_EQ(due_, 1);
  EXPECT_EQ(files_.TakeOlder(2500ms), std::vector<InodePtr>{first});
  EXPECT_EQ(files_.TakeAll(), std::vector<InodePtr>{second});
  Pass(10s);
  EXPECT_EQ(due_, 1);
  EXPECT_EQ(idle_, 1) << "once: then nothing is due until there is something";
}

TEST_F(DirtyFilesTest, ManyAreNotLeftToTheClock) {
  for (uint32_t i = 0; i < 5000; ++i) files_.List(inodes_.Get({1, i, 0}));
  EXPECT_EQ(crowded_, 1);
}

TEST_F(DirtyFilesTest, OneOfThoseThatWereClosedSendsAll) {
  const InodePtr first = inodes_.Get({1, 1, 0}), second = inodes_.Get({1, 2, 0});
  EXPECT_TRUE(files_.ListClosed(first));
  EXPECT_FALSE(files_.ListClosed(first));
  EXPECT_FALSE(files_.ListClosed(second));
  EXPECT_EQ(files_.TakeClosed().size(), 2u);
  EXPECT_TRUE(files_.ListClosed(first));
}

TEST_F(DirtyFilesTest, NothingComesAfterTheEnd) {
  files_.List(inodes_.Get({1, 1, 0}));
  files_.Stop();
  Pass(10s);
  files_.List(inodes_.Get({1, 2, 0}));
  Pass(10s);
  EXPECT_EQ(due_ + idle_, 0);
}

}  // namespace
}  // namespace nacre::client
