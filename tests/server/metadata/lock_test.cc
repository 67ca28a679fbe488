#include "tests/server/metadata/harness.h"

namespace nacre::mds {
namespace {

class LockTest : public testing::Test {
 protected:
  using Pending = std::shared_ptr<std::optional<proto::MetadataReply>>;

  proto::MetadataRequest Request(uint64_t owner, uint32_t type, uint64_t start = 0,
                                 uint64_t end = (uint64_t{1} << 63) - 1, bool flock = false) {
    proto::MetadataRequest request;
    proto::LockRange* lock = request.mutable_set_lock()->mutable_lock();
    *lock->mutable_fid() = ToProto(file);
    lock->set_owner(owner);
    lock->set_type(type);
    lock->set_start(start);
    lock->set_end(end);
    lock->set_flock(flock);
    return request;
  }
  proto::MetadataReply Lock(TestClient& client, uint64_t owner, uint32_t type, uint64_t start, uint64_t end) {
    return client.Call(Request(owner, type, start, end));
  }
  Pending Wait(TestClient& client, proto::MetadataRequest request, uint64_t wait_id) {
    auto reply = std::make_shared<std::optional<proto::MetadataReply>>();
    request.mutable_set_lock()->set_wait(true);
    request.mutable_set_lock()->set_wait_id(wait_id);
    client.Start(std::move(request), reply);
    harness.RunFor(std::chrono::milliseconds(10));
    return reply;
  }

  Harness harness;
  TestClient a{harness}, b{harness};
  Fid file = FidOf(a.Create(kRootFid, "f"));
};

TEST_F(LockTest, RangesOfDifferentOwnersExcludeEachOther) {
  EXPECT_THAT(Lock(a, 1, F_WRLCK, 0, 99), IsOk());
  EXPECT_THAT(Lock(b, 1, F_RDLCK, 50, 60), Fails(EAGAIN));
  EXPECT_THAT(Lock(b, 1, F_RDLCK, 100, 200), IsOk());
  EXPECT_THAT(Lock(a, 2, F_RDLCK, 150, 160), IsOk());
  EXPECT_THAT(Lock(a, 2, F_WRLCK, 150, 160), Fails(EAGAIN));
  EXPECT_THAT(Lock(a, 1, F_UNLCK, 40, 60), IsOk());  // splits the range
  EXPECT_THAT(Lock(b, 1, F_WRLCK, 45, 55), IsOk());
  EXPECT_THAT(Lock(b, 1, F_WRLCK, 39, 39), Fails(EAGAIN));
  EXPECT_THAT(Lock(b, 1, F_WRLCK, 61, 61), Fails(EAGAIN));
}

TEST_F(LockTest, GetTellsWhoIsInTheWay) {
  Lock(a, 1, F_WRLCK, 10, 19);
  proto::MetadataRequest get;
  *get.mutable_get_lock()->mutable_lock() = Request(2, F_RDLCK, 0, 100).set_lock().lock();
  auto found = b.Call(get);
  EXPECT_EQ(found.lock().conflict().type(), static_cast<uint32_t>(F_WRLCK));
  EXPECT_EQ(found.lock().conflict().start(), 10u);
  EXPECT_EQ(found.lock().conflict().end(), 19u);
  *get.mutable_get_lock()->mutable_lock() = Request(2, F_RDLCK, 20, 100).set_lock().lock();
  EXPECT_EQ(b.Call(get).lock().conflict().type(), static_cast<uint32_t>(F_UNLCK));
}

TEST_F(LockTest, AWaiterIsAnsweredWhenTheLockIsFree) {
  Lock(a, 1, F_WRLCK, 0, 9);
  auto waiting = Wait(b, Request(1, F_WRLCK, 5, 7), 1);
  EXPECT_FALSE(waiting->has_value());
  Lock(a, 1, F_UNLCK, 0, 9);
  ASSERT_TRUE(harness.RunUntil([&] { return waiting->has_value(); }));
  EXPECT_THAT(**waiting, IsOk());
  EXPECT_THAT(Lock(a, 1, F_RDLCK, 6, 6), Fails(EAGAIN));
}

TEST_F(LockTest, AWaitIsCancelled) {
  Lock(a, 1, F_WRLCK, 0, 9);
  auto waiting = Wait(b, Request(1, F_WRLCK, 5, 7), 77);
  proto::MetadataRequest cancel;
  cancel.mutable_set_lock()->set_cancel(true);
  cancel.mutable_set_lock()->set_wait_id(77);
  EXPECT_THAT(b.Call(cancel), IsOk());
  ASSERT_TRUE(harness.RunUntil([&] { return waiting->has_value(); }));
  EXPECT_THAT(**waiting, Fails(EINTR));
}

TEST_F(LockTest, ADeadlockOfPosixWaitsIsRefused) {
  Lock(a, 1, F_WRLCK, 0, 0);
  Lock(b, 1, F_WRLCK, 1, 1);
  auto first = Wait(a, Request(1, F_WRLCK, 1, 1), 1);
  EXPECT_FALSE(first->has_value());
  auto second = Wait(b, Request(1, F_WRLCK, 0, 0), 2);
  ASSERT_TRUE(second->has_value());
  EXPECT_THAT(**second, Fails(EDEADLK));
}

TEST_F(LockTest, FlockIsApartFromRanges) {
  EXPECT_THAT(a.Call(Request(1, F_WRLCK, 0, 0, true)), IsOk());
  EXPECT_THAT(Lock(b, 1, F_WRLCK, 0, 100), IsOk());
  EXPECT_THAT(b.Call(Request(1, F_RDLCK, 0, 0, true)), Fails(EAGAIN));
  EXPECT_THAT(a.Call(Request(1, F_RDLCK, 0, 0, true)), IsOk());
  EXPECT_THAT(b.Call(Request(1, F_RDLCK, 0, 0, true)), IsOk());
}

TEST_F(LockTest, TheEndOfASessionFreesItsLocks) {
  Lock(a, 1, F_WRLCK, 0, 9);
  auto waiting = Wait(b, Request(1, F_WRLCK, 5, 7), 1);
  proto::MetadataRequest bye;
  bye.mutable_disconnect();
  EXPECT_THAT(a.Call(bye), IsOk());
  ASSERT_TRUE(harness.RunUntil([&] { return waiting->has_value(); }));
  EXPECT_THAT(**waiting, IsOk());
}

TEST_F(LockTest, AfterARestartLocksAreReclaimedBeforeOthersAreGiven) {
  Lock(a, 1, F_WRLCK, 0, 9);
  harness.Restart();
  ASSERT_THAT(b.Connect(), IsOk());
  proto::MetadataRequest reclaim;
  reclaim.mutable_reclaim()->set_last(true);
  ASSERT_THAT(b.Call(reclaim), IsOk());
  auto greedy = std::make_shared<std::optional<proto::MetadataReply>>();
  b.Start(Request(1, F_WRLCK, 0, 9), greedy);
  harness.RunFor(std::chrono::seconds(1));
  EXPECT_FALSE(greedy->has_value());
  ASSERT_THAT(a.Connect(), IsOk());
  *reclaim.mutable_reclaim()->add_locks() = Request(1, F_WRLCK, 0, 9).set_lock().lock();
  ASSERT_THAT(a.Call(reclaim), IsOk());
  ASSERT_TRUE(harness.RunUntil([&] { return greedy->has_value(); }));
  EXPECT_THAT(**greedy, Fails(EAGAIN));
}

TEST_F(LockTest, MalformedLocksAreRefused) {
  EXPECT_THAT(Lock(a, 1, 17, 0, 9), Fails(EINVAL));
  EXPECT_THAT(Lock(a, 1, F_RDLCK, 9, 0), Fails(EINVAL));
}

}  // namespace
}  // namespace nacre::mds
