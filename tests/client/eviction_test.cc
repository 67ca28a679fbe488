// Operations that are under way in a client while its session ends.
#include "client/inode.h"
#include "tests/client/harness.h"

namespace nacre::client {
namespace {

// A create waits for room in the queue of changes while the session ends, and is let go when the client has
// the next one: its leases are not those under which the create was begun.
TEST(Eviction, WhatHasWaitedIsNotAnsweredByTheLeasesOfTheNextSession) {
  Harness harness;
  auto mine = harness.Mount();
  ASSERT_TRUE(mine->Close(mine->Create("first")).ok());
  harness.world.RunFor(1s);  // the lease of the directory is here, and nothing is on its way
  bool held = true;
  mine->before_reply = [&](const proto::MetadataRequest& request) -> Task<Status> {
    while (held && request.has_batch()) co_await harness.world.clock().Sleep(10ms);
    co_return OkStatus();
  };
  std::vector<std::shared_ptr<std::optional<StatusOr<Created>>>> creates;
  constexpr size_t kMost = 2000;
  while (creates.empty() || (creates.back()->has_value() && creates.size() < kMost)) {
    creates.push_back(std::make_shared<std::optional<StatusOr<Created>>>());
    auto task = mine->fs().Create(mine->caller, kRootFid, "f" + std::to_string(creates.size()),
                                  S_IFREG | 0644, O_RDWR | O_CREAT);
    Spawn(mine->process()->executor(), std::move(task),
          [created = creates.back()](StatusOr<Created> result) { *created = std::move(result); });
    harness.world.RunFor(10ms);
  }
  const auto last = creates.back();
  ASSERT_FALSE(last->has_value()) << "the queue has no end";
  ASSERT_GT(creates.size(), 100u) << "something else is waited for";
  const int node = mine->process()->node();
  for (int other = 0; other < harness.cluster.nodes(); ++other) {
    harness.network.Cut(node, other);
    harness.network.Cut(other, node);
  }
  auto theirs = harness.Mount();
  (void)theirs->List();  // once the other one is evicted
  harness.network.Heal();
  auto connected = [&] {
    const Seen seen = mine->fs().Look();
    return seen.connected && seen.epoch > 1;
  };
  ASSERT_TRUE(harness.RunUntil(connected));
  harness.world.RunFor(1s);
  ASSERT_FALSE(last->has_value());
  held = false;
  ASSERT_TRUE(harness.RunUntil([&] { return last->has_value(); }));
  EXPECT_THAT((*last)->status(), HasErrno(EIO));
  harness.world.RunFor(5s);
  // Handles of the session before are dead, and count for nothing in the next one.
  for (const auto& created : creates) {
    if (!(*created)->ok()) continue;
    const HandlePtr& handle = (**created)->handle;
    ASSERT_THAT(mine->TryWrite(handle, 0, "no").status(), HasErrno(EIO));
    ASSERT_TRUE(mine->Await(mine->fs().Release(handle)).ok());
    ASSERT_EQ(handle->inode->opens, 0u);
  }
  EXPECT_THAT(mine->List(), testing::ElementsAreArray(theirs->List()));
  EXPECT_TRUE(mine->Close(mine->Create("after")).ok());
}

}  // namespace
}  // namespace nacre::client
