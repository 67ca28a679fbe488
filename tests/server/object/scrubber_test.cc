#include "server/object/scrubber.h"

#include <gmock/gmock.h>

#include "tests/server/object/chain_fixture.h"

namespace nacre::ost {
namespace {

using testing::HasSubstr;

constexpr ObjectId kScrubbed{7, 0};

class ScrubberTest : public testing::Test {
 protected:
  static std::string AddressOf(int i) { return absl::StrCat("inproc:oss", i); }

  // As heard with the last heartbeat; before the first one, nothing.
  const proto::OstInfo& Info(int i) {
    static const proto::OstInfo kNone;
    const proto::HeartbeatRequest& heard = f_.judge->heard[AddressOf(i)];
    return heard.osts_size() == 0 ? kNone : heard.osts(0);
  }
  const proto::ScrubState& State(int i) { return Info(i).scrub(); }

  void Order(bool stop = false, uint64_t bytes_per_second = 0) {
    f_.judge->scrub.set_number(f_.judge->scrub.number() + 1);
    f_.judge->scrub.set_stop(stop);
    f_.judge->scrub.set_bytes_per_second(bytes_per_second);
  }
  bool HasDone(int i) { return State(i).order() == f_.judge->scrub.number() && !State(i).running(); }
  // Members that are not in sync are not waited for.
  void Scrub(std::vector<int> members) {
    Order();
    ASSERT_TRUE(f_.RunUntil([&] { return std::ranges::all_of(members, [&](int i) { return HasDone(i); }); }));
  }

  Status Write(ObjectId id, std::string data) {
    auto client = f_.Client(0, 5);
    return f_.Write(client.get(), id, 0, std::move(data));
  }
  static std::string Data(char first) {
    std::string data(10 * kBlockSize, first);
    for (size_t i = 0; i < 10; ++i) data[i * kBlockSize] = static_cast<char>('0' + i);
    return data;
  }

  ChainFixture f_;
};

TEST_F(ScrubberTest, ReadsEverythingAndFindsNothingWrong) {
  f_.SetChain({0, 1, 2});
  ASSERT_TRUE(Write(kScrubbed, Data('a')).ok());
  ASSERT_TRUE(Write({8, 1}, Data('b')).ok());
  Scrub({0, 1, 2});
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(State(i).read_bytes(), 20 * kBlockSize) << i;
    EXPECT_EQ(State(i).bad_blocks() + State(i).differing_objects(), 0u) << i;
    EXPECT_GT(State(i).finished(), 0) << i;
  }
  EXPECT_EQ(f_.judge->chain.members_size(), 3);
}

TEST_F(ScrubberTest, ABadBlockIsRepairedFromAnotherMemberWhereverItIs) {
  f_.SetChain({0, 1, 2});
  ASSERT_TRUE(Write(kScrubbed, Data('a')).ok());
  for (int bad = 0; bad < 3; ++bad) {
    f_.Restart({0, 1, 2});
    f_.Spoil(bad, kScrubbed, 3);
    f_.Spoil(bad, kScrubbed, 7);
    Scrub({0, 1, 2});
    EXPECT_EQ(State(bad).bad_blocks(), 2u) << bad;
    EXPECT_EQ(State(bad).repaired_blocks(), 2u) << bad;
    EXPECT_TRUE(Info(bad).problems().empty()) << Info(bad).problems(0);
  }
  f_.Restart({0, 1, 2});
  Scrub({0, 1, 2});
  for (int i = 0; i < 3; ++i) EXPECT_EQ(State(i).bad_blocks(), 0u) << i;
  const auto want = f_.Contents(0);
  EXPECT_EQ(f_.Contents(1), want);
  EXPECT_EQ(f_.Contents(2), want);
}

// A drive loses what it was not told to flush, and the next scrub comes a week later.
TEST_F(ScrubberTest, WhatWasMendedSurvivesALossOfPower) {
  f_.SetChain({0, 1, 2});
  ASSERT_TRUE(Write(kScrubbed, Data('a')).ok());
  f_.Restart({0, 1, 2});
  ASSERT_TRUE(f_.RunUntil([&] { return f_.kv[0].unsynced_batches() == 0; })) << "nothing is left to sync";
  f_.Spoil(0, kScrubbed, 3);
  Scrub({0, 1, 2});
  EXPECT_EQ(State(0).repaired_blocks(), 1u);
  Chunk chunk;
  ASSERT_TRUE(LoadChunk(&f_.kv[0], kScrubbed, 0, &chunk).ok());
  EXPECT_TRUE(f_.disk[0]->SurelyHas(chunk.physical[3], chunk.crc[3]));
}

// The same block at the head and behind it: each is repaired once somebody who is asked has it.
TEST_F(ScrubberTest, ABadBlockIsRepairedThoughTheNextMemberHasItBadToo) {
  f_.SetChain({0, 1, 2});
  ASSERT_TRUE(Write(kScrubbed, Data('a')).ok());
  f_.Restart({0, 1, 2});
  f_.Spoil(0, kScrubbed, 3);
  f_.Spoil(1, kScrubbed, 3);
  Scrub({0, 1, 2});
  EXPECT_EQ(State(1).bad_blocks(), State(1).repaired_blocks());
  Scrub({0, 1, 2});
  auto client = f_.Client(0, 5);
  auto read = f_.Read(client.get(), kScrubbed, 10 * kBlockSize);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, Data('a'));
}

TEST_F(ScrubberTest, WhatNobodyHasIsReportedUntilTheFileIsWrittenAnew) {
  f_.SetChain({0});
  ASSERT_TRUE(Write(kScrubbed, Data('a')).ok());
  f_.Restart({0});
  f_.Spoil(0, kScrubbed, 3);
  Scrub({0});
  EXPECT_EQ(State(0).bad_blocks(), 1u);
  EXPECT_EQ(State(0).repaired_blocks(), 0u);
  ASSERT_EQ(Info(0).problems_size(), 1);
  EXPECT_THAT(Info(0).problems(0), HasSubstr("object 7.0 block 3"));
  auto client = f_.Client(0, 5);
  EXPECT_EQ(ToErrno(f_.Read(client.get(), kScrubbed, 10 * kBlockSize).status()), EIO);
  Scrub({0});
  EXPECT_EQ(Info(0).problems_size(), 1) << "it is bad still, and said once";
  ASSERT_TRUE(Write(kScrubbed, Data('b')).ok());
  Scrub({0});
  EXPECT_EQ(Info(0).problems_size(), 0) << Info(0).problems(0);
}

TEST_F(ScrubberTest, ABadBlockIsRepairedFromTheCache) {
  f_.SetChain({0});
  ASSERT_TRUE(Write(kScrubbed, Data('a')).ok());
  auto client = f_.Client(0, 5);
  ASSERT_TRUE(f_.Read(client.get(), kScrubbed, 10 * kBlockSize).ok());
  f_.Spoil(0, kScrubbed, 3);
  Scrub({0});
  EXPECT_EQ(State(0).bad_blocks(), 1u);
  EXPECT_EQ(State(0).repaired_blocks(), 1u);
}

// All checksums are right, and the versions are the same: what should never be.
TEST_F(ScrubberTest, AMemberWithOtherBytesIsFilledAnew) {
  f_.SetChain({0});
  ASSERT_TRUE(Write(kScrubbed, Data('a')).ok());
  ASSERT_TRUE(Write({9, 0}, Data('c')).ok());
  f_.SetChain({0}, {1});
  ASSERT_TRUE(f_.RunUntil([&] { return f_.judge->chain.members_size() == 2; }));
  f_.SetChain({1});
  auto other = f_.Client(1, 6);
  ASSERT_TRUE(f_.Write(other.get(), kScrubbed, 0, Data('x')).ok());
  f_.Crash(1);
  KvBatch same;
  same.Put(ObjectKey(kScrubbed), *f_.kv[0].Get(ObjectKey(kScrubbed)));
  ASSERT_TRUE(f_.Run(f_.kv[1].Commit(std::move(same))).ok());
  f_.Start(1);
  f_.SetChain({0, 1});
  Scrub({0});
  EXPECT_EQ(State(0).differing_objects(), 1u);
  ASSERT_EQ(f_.judge->chain.members_size(), 1);
  EXPECT_THAT(f_.judge->reports.back().why(), HasSubstr("7.0"));
  f_.SetChain({0}, {1});
  ASSERT_TRUE(f_.RunUntil([&] { return f_.judge->chain.members_size() == 2; }));
  const auto want = f_.Contents(0);
  EXPECT_EQ(f_.Contents(1), want);
}

// While others write, and members are compared, nothing differs and nobody waits for long.
TEST_F(ScrubberTest, WritesGoOnMeanwhile) {
  f_.SetChain({0, 1, 2});
  auto client = f_.Client(0, 5);
  Order(/*stop=*/false, /*bytes_per_second=*/4 << 20);
  for (int i = 0; i < 200; ++i) {
    const ObjectId id{static_cast<uint64_t>(i % 10) + 1, 0};
    ASSERT_TRUE(f_.Write(client.get(), id, (i % 7) * kBlockSize, Data(static_cast<char>('a' + i % 26))).ok());
  }
  ASSERT_TRUE(f_.RunUntil([&] { return HasDone(0) && HasDone(1) && HasDone(2); }));
  Scrub({0, 1, 2});
  for (int i = 0; i < 3; ++i) EXPECT_EQ(State(i).bad_blocks() + State(i).differing_objects(), 0u) << i;
  EXPECT_EQ(f_.judge->chain.members_size(), 3);
}

TEST_F(ScrubberTest, IsStoppedByAnOrder) {
  f_.SetChain({0});
  for (uint64_t i = 1; i <= 40; ++i) ASSERT_TRUE(Write({i, 0}, Data('a')).ok());
  Order(/*stop=*/false, /*bytes_per_second=*/kBlockSize);
  ASSERT_TRUE(f_.RunUntil([&] { return State(0).running() && State(0).read_bytes() > 0; }));
  Order(/*stop=*/true);
  ASSERT_TRUE(f_.RunUntil([&] { return HasDone(0); }));
  EXPECT_TRUE(State(0).stopped());
  EXPECT_EQ(State(0).finished(), 0);
  EXPECT_LT(State(0).read_bytes(), 400 * kBlockSize);
}

TEST_F(ScrubberTest, ARestartGoesOnFromWhereItWas) {
  f_.SetChain({0});
  for (uint64_t i = 1; i <= 10; ++i) ASSERT_TRUE(Write({i, 0}, Data('a')).ok());
  f_.Crash(0);
  ScrubRecord record;
  record.after = ObjectId{7, 0};
  record.state.set_order(5);
  record.state.set_running(true);
  record.state.set_began(1000);
  record.state.set_read_bytes(70 * kBlockSize);
  KvBatch batch;
  batch.Put(std::string(kScrubKey), Encode(record));
  ASSERT_TRUE(f_.Run(f_.kv[0].Commit(std::move(batch))).ok());
  f_.judge->scrub.set_number(5);
  f_.Start(0);
  f_.SetChain({0});
  f_.judge->heard.clear();
  ASSERT_TRUE(f_.RunUntil([&] { return HasDone(0); }));
  EXPECT_EQ(State(0).read_bytes(), 100 * kBlockSize);
  EXPECT_EQ(State(0).began(), 1000);
  EXPECT_GT(State(0).finished(), 1000);
}

// An order is done once, also by the next process.
TEST_F(ScrubberTest, AnOrderIsRememberedByTheStore) {
  f_.SetChain({0});
  ASSERT_TRUE(Write(kScrubbed, Data('a')).ok());
  Scrub({0});
  const int64_t began = State(0).began();
  f_.Restart({0});
  ASSERT_FALSE(f_.RunUntil([&] { return State(0).began() > began; }, 1500ms));
}

TEST_F(ScrubberTest, BeginsByItselfWhenItIsDue) {
  f_.scrub_every = 1s;
  f_.SetChain({0});
  ASSERT_TRUE(Write(kScrubbed, Data('a')).ok());
  f_.Restart({0});
  ASSERT_TRUE(f_.RunUntil([&] { return State(0).finished() > 0; }));
  const int64_t first = State(0).finished();
  EXPECT_EQ(State(0).read_bytes(), 10 * kBlockSize);
  EXPECT_TRUE(f_.RunUntil([&] { return State(0).finished() > first; }));
}

TEST(ScrubRecord, IsReadAsItWasWritten) {
  ScrubRecord record;
  record.after = ObjectId{3, 1};
  record.state.set_bad_blocks(2);
  auto read = ParseScrubRecord(Encode(record));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->after, record.after);
  EXPECT_EQ(read->state.bad_blocks(), 2u);
  EXPECT_FALSE(ParseScrubRecord(Encode(ScrubRecord{}))->after.has_value());
  EXPECT_FALSE(ParseScrubRecord("").ok());
  EXPECT_FALSE(ParseScrubRecord("" + Encode(record).substr(1)).ok());
}

}  // namespace
}  // namespace nacre::ost
