// Chains of OSTs (server/object/chain.h): what the members of one have, and who serves.
#include "server/object/chain.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "common/metrics.h"
#include "server/object/change_proto.h"
#include "tests/server/object/chain_fixture.h"

namespace nacre {
namespace {

constexpr ObjectId kObject{7, 0};

proto::ObjectRequest Truncate(ObjectId id, uint64_t size) {
  proto::ObjectRequest request;
  *request.mutable_truncate()->mutable_object() = ToProto(id);
  request.mutable_truncate()->set_size(size);
  return request;
}

proto::ObjectRequest Punch(ObjectId id, uint64_t offset, uint64_t length) {
  proto::ObjectRequest request;
  *request.mutable_punch()->mutable_object() = ToProto(id);
  request.mutable_punch()->set_offset(offset);
  request.mutable_punch()->set_length(length);
  return request;
}

proto::ObjectRequest Preallocate(ObjectId id, uint64_t offset, uint64_t length) {
  proto::ObjectRequest request;
  *request.mutable_preallocate()->mutable_object() = ToProto(id);
  request.mutable_preallocate()->set_offset(offset);
  request.mutable_preallocate()->set_length(length);
  return request;
}

proto::ObjectRequest Destroy(ObjectId id) {
  proto::ObjectRequest request;
  *request.mutable_destroy()->add_objects() = ToProto(id);
  return request;
}

class ChainTest : public testing::Test {
 protected:
  // A change of one of a few objects.
  void ChangeSomething(ObjectStub* client, ObjectStub* mds) {
    const ObjectId id{1 + f.random.Below(6), 0};
    const uint64_t offset = f.random.Below(600'000), length = 1 + f.random.Below(40'000);
    switch (f.random.Below(12)) {
      case 0:
        return (void)f.Change(mds, Truncate(id, offset));
      case 1:
        return (void)f.Change(client, Punch(id, offset, length));
      case 2:
        return (void)f.Change(client, Preallocate(id, offset, length));
      case 3:
        return (void)f.Change(mds, Destroy(id));
      default:
        const std::string data(length, static_cast<char>('a' + f.random.Below(26)));
        EXPECT_TRUE(f.Write(client, id, offset, data).ok());
    }
  }

  ChainFixture f;
};

TEST_F(ChainTest, ServesNobodyUntilItIsTold) {
  auto client = f.Client(0, 5);
  std::optional<Status> written;
  f.StartWrite(client.get(), kObject, 0, "x", &written);
  EXPECT_FALSE(f.RunUntil([&] { return written.has_value(); }, 300ms));
  f.SetChain({0});
  ASSERT_TRUE(f.RunUntil([&] { return written.has_value(); }));
  EXPECT_TRUE(written->ok()) << *written;
}

TEST_F(ChainTest, EveryMemberHasWhatWasAcknowledged) {
  f.SetChain({0, 1, 2});
  auto client = f.Client(0, 5), mds = f.Client(0, 0);
  for (int i = 0; i < 200; ++i) ChangeSomething(client.get(), mds.get());
  const auto want = f.Contents(0);
  EXPECT_FALSE(want.empty());
  EXPECT_EQ(f.Contents(1), want);
  EXPECT_EQ(f.Contents(2), want);
}

// Together they would be more than one message to the next member holds: nobody is to blame for that.
TEST_F(ChainTest, RangesThatAreTooLongTogetherAreTwoCommits) {
  f.SetChain({0, 1});
  auto client = f.Client(0, 5);
  const std::string head(320 << 10, 'h'), tail(1984 << 10, 't');
  proto::ObjectRequest request = ServerFixture::WriteRequest(0, kObject, 0, head);
  const proto::ObjectRequest second = ServerFixture::WriteRequest(0, kObject, head.size(), tail);
  proto::WriteRange* range = request.mutable_write()->add_ranges();
  *range = second.write().ranges(0);
  range->mutable_range()->set_memory_offset(head.size());
  ClientMemory sent(f.transports[ChainFixture::kServers].get(), head.size() + tail.size());
  std::ranges::copy(head + tail, sent.bytes.begin());
  auto reply = f.Run(client->Call(std::move(request), CallMemory::kGetSource, sent.Spans()));
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_TRUE(f.judge->reports.empty());
  EXPECT_TRUE(f.Read(client.get(), kObject, head.size() + tail.size()).value() == head + tail);
  const auto want = f.Contents(0);
  EXPECT_EQ(f.Contents(1), want);
}

TEST_F(ChainTest, OnlyTheHeadServes) {
  f.SetChain({0, 1});
  auto client = f.Client(1, 5);
  std::optional<Status> written;
  f.StartWrite(client.get(), kObject, 0, "x", &written);
  EXPECT_FALSE(f.RunUntil([&] { return written.has_value(); }, 300ms));
  f.SetChain({1});
  EXPECT_TRUE(f.RunUntil([&] { return written.has_value(); }));
}

// Seed 1860000156 of OSTs with three members: a server lost power and was started at once; the MGS had not
// heard of that and told it of the next epoch, in which it was the head, without what it had lost.
TEST_F(ChainTest, AProcessThatTheChainDoesNotNameIsNotItsHead) {
  f.SetChain({0, 1});
  proto::ObjectRequest request;
  proto::Chain* chain = request.mutable_set_chain()->mutable_chain();
  chain->set_epoch(f.judge->chain.epoch() + 1);
  *chain->add_members() = f.Member(0);
  *chain->add_members() = f.Member(1);
  request.mutable_set_chain()->set_member(f.Member(0).uuid());
  f.LosePower(0);
  f.Start(0);
  auto mgs = f.Client(0, 0);
  EXPECT_EQ(ToErrno(f.Change(mgs.get(), request)), ESTALE);
  auto client = f.Client(0, 5);
  std::optional<Status> written;
  f.StartWrite(client.get(), kObject, 0, "x", &written);
  EXPECT_FALSE(f.RunUntil([&] { return written.has_value(); }, 300ms));
}

// Seed 1732000054 of OSTs with two members: one that had yet to be filled answered a client's ping that the
// OST had never lost power, and the next answer was taken for a new loss.
TEST_F(ChainTest, OnlyTheHeadSaysHowOftenPowerWasLost) {
  f.SetChain({0});
  f.LosePower(0);
  f.Start(0);
  f.SetChain({0});
  auto ping = [this](int server, Duration patience) {
    auto client = f.Client(server, 5);
    proto::ObjectRequest request;
    request.mutable_ping();
    std::optional<StatusOr<proto::ObjectReply>> reply;
    Spawn(f.context.get_executor(), client->Call(std::move(request), CallMemory::kNone, {}),
          [&reply](StatusOr<proto::ObjectReply> result) { reply = std::move(result); });
    (void)f.RunUntil([&] { return reply.has_value(); }, patience);
    client->Close();
    (void)f.RunUntil([&] { return reply.has_value(); });
    return *std::move(reply);
  };
  auto of_head = ping(0, 20s);
  ASSERT_TRUE(of_head.ok()) << of_head.status();
  EXPECT_EQ(of_head->losses(), 1u);
  f.SetChain({0}, {1});
  EXPECT_FALSE(ping(1, 300ms).ok());
}

// Its successor knows more than it does, and that this one is the head no more.
TEST_F(ChainTest, AnOldHeadAcknowledgesNothing) {
  f.SetChain({0, 1});
  auto client = f.Client(0, 5);
  proto::Chain next = f.judge->chain;
  next.mutable_members()->DeleteSubrange(0, 1);
  next.set_epoch(next.epoch() + 1);
  f.judge->chain = next;
  f.Run([](ChainFixture* f, proto::Chain next) -> Task<Unit> {
    co_await f->judge->tell(next, next.members(0).uuid());
    co_return Unit{};
  }(&f, next));
  std::optional<Status> written;
  f.StartWrite(client.get(), kObject, 0, "x", &written);
  EXPECT_FALSE(f.RunUntil([&] { return written.has_value(); }, 1s));
  EXPECT_TRUE(f.Contents(1).empty());
}

TEST_F(ChainTest, GoesOnWithoutAMemberOnceTheJudgeHasTakenItOut) {
  f.SetChain({0, 1});
  auto client = f.Client(0, 5);
  ASSERT_TRUE(f.Write(client.get(), kObject, 0, "before").ok());
  f.Crash(1);
  f.judge->away = true;
  std::optional<Status> written;
  f.StartWrite(client.get(), kObject, 0, "behind", &written);
  EXPECT_FALSE(f.RunUntil([&] { return written.has_value(); }, 3s)) << "acknowledged by one of two";
  f.judge->away = false;
  ASSERT_TRUE(f.RunUntil([&] { return written.has_value(); }));
  EXPECT_TRUE(written->ok()) << *written;
  EXPECT_EQ(*f.Read(client.get(), kObject, 10), "behind");
}

// Seed 1223000028 of OSTs with two members and three MDSes: a write of the MDS before waited for the MGS's
// answer about the member, which came from another MDS; and that was not believed before the writes of the
// MDS before had ended.
TEST_F(ChainTest, AnotherMdsMayTakeAMemberOut) {
  f.SetChain({0, 1});
  auto mds = f.Client(0, 0);
  f.Crash(1);
  f.judge->mdt_epoch = 5;
  std::optional<Status> written;
  f.StartWrite(mds.get(), kObject, 0, "moved out", &written);
  ASSERT_TRUE(f.RunUntil([&] { return written.has_value(); }));
  EXPECT_TRUE(written->ok()) << *written;
}

// Its changes that are under way go on: the members behind it may have them.
TEST_F(ChainTest, AHeadThatHasNotHeardOfAnEpochStaysTheHead) {
  f.SetChain({0, 1});
  auto client = f.Client(0, 5);
  f.Crash(1);
  f.SetChain({0, 1}, {2}, /*head_hears=*/false);
  std::optional<Status> written;
  f.StartWrite(client.get(), kObject, 0, "x", &written);
  ASSERT_TRUE(f.RunUntil([&] { return written.has_value(); }));
  EXPECT_TRUE(written->ok()) << *written;
}

TEST_F(ChainTest, TheMemberThatIsLostMayBeFurtherOn) {
  f.SetChain({0, 1, 2});
  auto client = f.Client(0, 5);
  f.Crash(2);
  ASSERT_TRUE(f.Write(client.get(), kObject, 0, "here").ok());
  EXPECT_EQ(f.judge->chain.members_size(), 2);
  EXPECT_EQ(f.Contents(1), f.Contents(0));
}

// The answer of a request is with every member: a repeat at the new head is not carried out.
TEST_F(ChainTest, ARepeatAtTheNewHeadIsAnswered) {
  f.SetChain({0, 1});
  auto other = f.Client(0, 6), client = f.Client(0, 5);
  const uint64_t first = f.sequence - 10000;
  ASSERT_TRUE(f.Write(client.get(), kObject, 0, "AAAA").ok());
  ASSERT_TRUE(f.Write(other.get(), kObject, 0, "BBBB").ok());
  f.Crash(0);
  f.SetChain({1});
  proto::ObjectRequest again = ServerFixture::WriteRequest(0, kObject, 0, "AAAA");
  again.set_session(5);
  again.set_sequence(first);
  again.set_low_water(first);
  CallRequest call;
  ClientMemory sent(f.transports[ChainFixture::kServers].get(), 4);
  sent.bytes = "AAAA";
  call.body = again.SerializeAsString();
  call.kind = CallMemory::kGetSource;
  call.memory = sent.Spans();
  auto peer = *f.transports[ChainFixture::kServers]->Connect("inproc:oss1");
  auto body = f.Run(peer->Call(std::move(call), 5s));
  ASSERT_TRUE(body.ok()) << body.status();
  proto::ObjectReply reply;
  ASSERT_TRUE(reply.ParseFromString(*body));
  EXPECT_EQ(reply.status().error(), 0u) << reply.status().message();
  EXPECT_EQ(reply.write().blocks_delta(), 8);
  auto reader = f.Client(1, 7);
  EXPECT_EQ(*f.Read(reader.get(), kObject, 4), "BBBB");
}

TEST_F(ChainTest, AFencedSessionIsFencedAtTheNextHead) {
  f.SetChain({0, 1}, {2});
  ASSERT_TRUE(f.RunUntil([&] { return f.judge->chain.members_size() == 3; }));
  auto mds = f.Client(0, 0);
  proto::ObjectRequest fence;
  fence.mutable_fence()->set_session(5);
  ASSERT_TRUE(f.Change(mds.get(), fence).ok());
  for (int i : {1, 2}) {
    f.SetChain({i});
    auto client = f.Client(i, 5);
    EXPECT_EQ(ToErrno(f.Write(client.get(), kObject, 0, "late")), ESTALE) << i;
  }
}

// --- filling ---

TEST_F(ChainTest, AnEmptyMemberIsFilledWhileTheHeadGoesOn) {
  f.SetChain({0});
  auto client = f.Client(0, 5), mds = f.Client(0, 0);
  for (int i = 0; i < 100; ++i) ChangeSomething(client.get(), mds.get());
  f.SetChain({0}, {1});
  while (f.judge->chain.members_size() == 1) ChangeSomething(client.get(), mds.get());
  for (int i = 0; i < 20; ++i) ChangeSomething(client.get(), mds.get());
  const auto want = f.Contents(0);
  EXPECT_EQ(f.Contents(1), want);
}

// Behind another member: what is under way when it joins has to reach it as well. Seeds 7701113 and 7702026
// of OSTs with three members: it was handed on to the second member in one epoch, and to the third in
// neither.
TEST_F(ChainTest, AThirdMemberGetsWhatIsUnderWayWhenItJoins) {
  f.judge->between = 10ms;
  for (int round = 0; round < 5; ++round) {
    f.SetChain({0, 1});
    auto client = f.Client(0, 5);
    constexpr uint64_t kWriters = 6;
    std::array<std::optional<Status>, kWriters> done;
    done.fill(OkStatus());
    int written = 0;
    auto write_on = [&](bool more) {
      for (uint64_t i = 0; i < kWriters; ++i) {
        if (!more || !done[i].has_value()) continue;
        EXPECT_TRUE(done[i]->ok()) << *done[i];
        done[i].reset();
        f.StartWrite(client.get(), {i + 1, 0}, 0, absl::StrCat("number ", ++written), &done[i]);
      }
    };
    f.SetChain({0, 1}, {2});
    ASSERT_TRUE(f.RunUntil([&] {
      write_on(true);
      return f.judge->chain.members_size() == 3;
    }));
    ASSERT_TRUE(f.RunUntil(
        [&] { return std::ranges::all_of(done, [](const auto& status) { return status.has_value(); }); }));
    EXPECT_EQ(f.judge->chain.members_size(), 3);
    const auto want = f.Contents(0);
    ASSERT_EQ(f.Contents(1), want) << round;
    ASSERT_EQ(f.Contents(2), want) << round;
  }
}

// Seed 1315000575 of OSTs with two members: one that the head could not reach joined again and again, and all
// changes waited for it each time, until a client that had to write could not give its lease back in time.
TEST_F(ChainTest, NobodyWaitsForAJoiningMemberThatCannotBeReached) {
  f.Crash(1);
  f.SetChain({0}, {1});
  auto client = f.Client(0, 5);
  std::optional<Status> written;
  f.StartWrite(client.get(), kObject, 0, "x", &written);
  ASSERT_TRUE(f.RunUntil([&] { return written.has_value(); }, 1s));
  EXPECT_TRUE(written->ok()) << *written;
}

// The member is told of an epoch before the head is, in the middle of the filling.
TEST_F(ChainTest, AMemberIsFilledThoughItHearsOfTheNextEpochFirst) {
  ChainFixture slow(/*fill_bytes_per_second=*/4 << 20);
  slow.SetChain({0});
  auto client = slow.Client(0, 5);
  const std::string data(300'000, 'd');
  for (uint64_t i = 1; i <= 6; ++i) ASSERT_TRUE(slow.Write(client.get(), {i, 0}, 0, data).ok());
  slow.SetChain({0}, {1});
  for (uint64_t i = 0; i < 3; ++i) {
    ASSERT_FALSE(slow.RunUntil([&] { return slow.judge->chain.members_size() == 2; }, 100ms));
    ASSERT_TRUE(slow.Write(client.get(), {6 - i, 0}, 0, "changed").ok());
    slow.SetChain({0}, {1}, /*head_hears=*/false);
  }
  ASSERT_TRUE(slow.RunUntil([&] { return slow.judge->chain.members_size() == 2; }));
  const auto want = slow.Contents(0);
  EXPECT_EQ(slow.Contents(1), want);
}

// In another epoch another process may hand on, which counts anew.
TEST_F(ChainTest, TheNextEpochCountsAnew) {
  f.SetChain({0, 1});
  auto client = f.Client(0, 5);
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(f.Write(client.get(), kObject, 0, "before").ok());
  f.Crash(0);
  f.Start(0);
  f.SetChain({0, 1});
  auto next = f.Client(0, 6);
  ASSERT_TRUE(f.Write(next.get(), kObject, 0, "behind").ok());
  EXPECT_EQ(f.judge->chain.members_size(), 2);
  const auto want = f.Contents(0);
  EXPECT_EQ(f.Contents(1), want);
}

// It had been in the chain: what it has is old, of other versions, or should not be there at all.
TEST_F(ChainTest, AMemberThatWasAwayIsBroughtUpToDate) {
  for (int round = 0; round < 10; ++round) {
    f.SetChain({0, 1});
    auto client = f.Client(0, 5), mds = f.Client(0, 0);
    for (int i = 0; i < 30; ++i) ChangeSomething(client.get(), mds.get());
    f.SetChain({0});
    for (int i = 0; i < 30; ++i) ChangeSomething(client.get(), mds.get());
    f.SetChain({0}, {1});
    while (f.judge->chain.members_size() == 1) ChangeSomething(client.get(), mds.get());
    const auto want = f.Contents(0);
    ASSERT_EQ(f.Contents(1), want) << round;
  }
}

// Neither has the whole of what the other has; the chain's truth is the head's.
TEST_F(ChainTest, AMemberThatHasLostPowerIsBroughtUpToDate) {
  for (int round = 0; round < 5; ++round) {
    f.SetChain({0, 1});
    auto client = f.Client(0, 5), mds = f.Client(0, 0);
    for (int i = 0; i < 40; ++i) ChangeSomething(client.get(), mds.get());
    f.LosePower(1);
    ChangeSomething(client.get(), mds.get());
    f.Start(1);
    f.SetChain({0}, {1});
    while (f.judge->chain.members_size() == 1) ChangeSomething(client.get(), mds.get());
    const auto want = f.Contents(0);
    ASSERT_EQ(f.Contents(1), want) << round;
  }
}

TEST_F(ChainTest, WhatTheHeadHasSyncedLastsAtAMemberThatHasJoined) {
  f.SetChain({0});
  auto client = f.Client(0, 5);
  ASSERT_TRUE(f.Write(client.get(), kObject, 0, std::string(100'000, 's')).ok());
  proto::ObjectRequest sync;
  sync.mutable_sync();
  ASSERT_TRUE(f.Change(client.get(), sync).ok());
  f.SetChain({0}, {1});
  ASSERT_TRUE(f.RunUntil([&] { return f.judge->chain.members_size() == 2; }));
  f.Crash(0);
  f.LosePower(1);
  f.Start(1);
  f.SetChain({1});
  auto reader = f.Client(1, 6);
  EXPECT_EQ(*f.Read(reader.get(), kObject, 100'000), std::string(100'000, 's'));
}

TEST_F(ChainTest, ASyncIsOfEveryMember) {
  f.SetChain({0, 1});
  auto client = f.Client(0, 5);
  ASSERT_TRUE(f.Write(client.get(), kObject, 0, "synced").ok());
  proto::ObjectRequest sync;
  sync.mutable_sync();
  ASSERT_TRUE(f.Change(client.get(), sync).ok());
  f.Crash(0);
  f.LosePower(1);
  f.Start(1);
  f.SetChain({1});
  auto reader = f.Client(1, 6);
  EXPECT_EQ(*f.Read(reader.get(), kObject, 6), "synced");
}

TEST_F(ChainTest, OnlyWhatDiffersIsCopied) {
  f.SetChain({0, 1});
  auto client = f.Client(0, 5);
  for (uint64_t i = 0; i < 20; ++i)
    ASSERT_TRUE(f.Write(client.get(), {100 + i, 0}, 0, std::string(200'000, 'x')).ok());
  f.SetChain({0});
  ASSERT_TRUE(f.Write(client.get(), {105, 0}, 0, "y").ok());
  static Counter& written = GetCounter("ost.filled_objects");
  const int64_t before = written.Get();
  f.SetChain({0}, {1});
  ASSERT_TRUE(f.RunUntil([&] { return f.judge->chain.members_size() == 2; }));
  EXPECT_EQ(written.Get() - before, 1);
}

TEST_F(ChainTest, AStoreThatFailsGivesItsPlaceUp) {
  f.SetChain({0, 1});
  auto client = f.Client(0, 5);
  ASSERT_TRUE(f.Write(client.get(), kObject, 0, "before").ok());
  f.kv[1].SetCommitHook([](const KvBatch&) { return ErrnoError(ENOSPC, "full"); });
  ASSERT_TRUE(f.Write(client.get(), kObject, 0, "behind").ok());
  EXPECT_EQ(f.judge->chain.members_size(), 1);
  EXPECT_EQ(*f.Read(client.get(), kObject, 6), "behind");
}

TEST_F(ChainTest, ABadBlockIsReadFromTheNextMemberAndRepaired) {
  f.SetChain({0, 1});
  auto client = f.Client(0, 5);
  const std::string data(10'000, 'r');
  ASSERT_TRUE(f.Write(client.get(), kObject, 0, data).ok());
  proto::ObjectRequest sync;
  sync.mutable_sync();
  ASSERT_TRUE(f.Change(client.get(), sync).ok());
  f.Crash(0);  // and its cache with it
  for (uint64_t block = 0; block < ChainFixture::kBlocks; ++block) f.disk[0]->FlipBit(block, 7);
  f.Start(0);
  f.SetChain({0, 1});
  auto reader = f.Client(0, 6);
  static Counter& repaired = GetCounter("ost.repaired_blocks");
  const int64_t before = repaired.Get();
  auto read = f.Read(reader.get(), kObject, 10'000);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, data);
  EXPECT_EQ(repaired.Get() - before, 3);
  f.Crash(0);
  f.Start(0);
  f.SetChain({0});  // nobody is there to ask
  auto again = f.Client(0, 7);
  EXPECT_EQ(*f.Read(again.get(), kObject, 10'000), data);
}

}  // namespace
}  // namespace nacre
