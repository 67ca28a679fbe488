// A wait for a lock is cancelled once, at any moment, and ends: also where the cancellation comes to the MDS
// before the wait has begun there.
#include "client/inode.h"
#include "tests/client/harness.h"

namespace nacre::client {
namespace {

constexpr uint64_t kWaitId = 7;
constexpr Duration kSoon = 10s;  // the client repeats itself every second at most

class LockWaits : public testing::Test {
 protected:
  LockWaits() : mine_(harness_.Mount()), theirs_(harness_.Mount()) {
    held_ = theirs_->Create("f");
    EXPECT_TRUE(theirs_->Await(theirs_->fs().SetLock(held_, Whole(F_WRLCK), false, 0)).ok());
    file_ = mine_->OpenName("f");
  }

  static proto::LockRange Whole(uint32_t type) {
    proto::LockRange lock;
    lock.set_owner(1);
    lock.set_type(type);
    lock.set_end(INT64_MAX);
    return lock;
  }
  void BeginToWait() {
    Spawn(mine_->process()->executor(), mine_->fs().SetLock(file_, Whole(F_WRLCK), true, kWaitId),
          [ended = ended_](Status status) { *ended = std::move(status); });
  }
  // The wait has left nothing behind that could get the lock, or keep it from anybody.
  void ExpectFree() {
    ASSERT_TRUE(theirs_->Await(theirs_->fs().SetLock(held_, Whole(F_UNLCK), false, 0)).ok());
    EXPECT_TRUE(mine_->Await(mine_->fs().SetLock(file_, Whole(F_WRLCK), false, 0)).ok());
    EXPECT_TRUE(mine_->Await(mine_->fs().SetLock(file_, Whole(F_UNLCK), false, 0)).ok());
  }

  Harness harness_;
  std::unique_ptr<Mounted> mine_, theirs_;
  HandlePtr held_, file_;
  const std::shared_ptr<std::optional<Status>> ended_ = std::make_shared<std::optional<Status>>();
};

TEST_F(LockWaits, ACancellationThatOvertakesItsRequestEndsIt) {
  std::vector<std::string> sent;
  mine_->before_request = [&](const proto::MetadataRequest& request) -> Task<void> {
    if (!request.has_set_lock()) co_return;
    if (request.set_lock().wait()) co_await harness_.world.clock().Sleep(100ms);
    sent.push_back(request.set_lock().cancel() ? "cancel" : "wait");
  };
  BeginToWait();
  harness_.world.RunFor(1ms);
  mine_->fs().CancelLock(file_, kWaitId);
  ASSERT_TRUE(harness_.RunUntil([&] { return ended_->has_value(); }, kSoon));
  ASSERT_GE(sent.size(), 3u);
  EXPECT_EQ(sent[0], "cancel");
  EXPECT_THAT(**ended_, HasErrno(EINTR));
  mine_->before_request = nullptr;
  ExpectFree();
}

// A third client has died with the MDS: until the MDS has given it up, locks are neither given nor waited
// for.
TEST_F(LockWaits, ACancellationDuringTheRecoveryOfTheMdsEndsIt) {
  auto dead = harness_.Mount();
  (void)dead->Create("other");
  dead->Kill();
  const int mds = harness_.cluster.mds(), before = mine_->requests["reclaim"];
  harness_.cluster.Crash(mds, sim::Loss::kProcess);
  harness_.cluster.Boot(mds);
  ASSERT_TRUE(harness_.RunUntil([&] { return mine_->requests["reclaim"] > before; }));
  BeginToWait();
  harness_.world.RunFor(1s);
  EXPECT_FALSE(ended_->has_value());
  mine_->fs().CancelLock(file_, kWaitId);
  harness_.world.RunFor(1s);
  EXPECT_FALSE(ended_->has_value());  // the MDS has heard of it, and waits for the third client
  ASSERT_TRUE(harness_.RunUntil([&] { return ended_->has_value(); }, 5 * harness_.options.metadata.lease));
  EXPECT_THAT(**ended_, HasErrno(EINTR));
  ExpectFree();
}

}  // namespace
}  // namespace nacre::client
