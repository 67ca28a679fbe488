// Blocks of a head that go bad while another member is being filled from it, and is the only one that has
// them.
#include <gmock/gmock.h>

#include <cerrno>

#include "common/metrics.h"
#include "server/object/object_table.h"
#include "tests/server/object/chain_fixture.h"

namespace nacre::ost {
namespace {

using testing::HasSubstr;

constexpr ObjectId kBadObject{7, 0}, kLargeObject{9, 0};
constexpr uint64_t kBlocksOfObject = 10;

class BadBlocksTest : public testing::Test {
 protected:
  static std::string Data(char first) {
    std::string data(kBlocksOfObject * kBlockSize, first);
    for (size_t i = 0; i < kBlocksOfObject; ++i) data[i * kBlockSize] = static_cast<char>('0' + i);
    return data;
  }
  Status Write(ObjectId id, uint64_t block, std::string data) {
    auto client = f_.Client(0, 5);
    return f_.Write(client.get(), id, block * kBlockSize, std::move(data));
  }
  StatusOr<std::string> ReadAll() {
    auto client = f_.Client(0, 6);
    return f_.Read(client.get(), kBadObject, kBlocksOfObject * kBlockSize);
  }
  // The server's cache is empty afterwards, and it is in no chain.
  void Restart(int i) {
    f_.Crash(i);
    f_.Start(i);
  }
  bool IsGood(int member, uint64_t block) {
    Chunk chunk;
    EXPECT_TRUE(LoadChunk(&f_.kv[member], kBadObject, block / kChunkBlocks, &chunk).ok());
    const auto i = static_cast<uint32_t>(block % kChunkBlocks);
    return f_.disk[member]->SurelyHas(chunk.physical[i], chunk.crc[i]);
  }
  // Member 1 is being filled by the head, and stays so for as long as nobody may put it into the chain.
  void Join(bool for_good) {
    f_.judge->away = !for_good;
    f_.SetChain({0}, /*joining=*/{1});
  }
  bool InSync(size_t members) {
    return f_.RunUntil([&] { return f_.judge->chain.members_size() == static_cast<int>(members); });
  }
  int GivenUp() {
    int lost = 0;
    for (const proto::ReportChainRequest& report : f_.judge->reports) lost += !report.lost().empty();
    return lost;
  }

  ChainFixture f_{/*fill_bytes_per_second=*/256 << 10};
};

TEST_F(BadBlocksTest, AReadIsAnsweredByTheMemberThatIsBeingFilled) {
  f_.SetChain({0, 1});
  ASSERT_TRUE(Write(kBadObject, 0, Data('a')).ok());
  for (int i : {0, 1}) Restart(i);
  Join(/*for_good=*/false);
  f_.Spoil(0, kBadObject, 3);
  auto read = ReadAll();
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, Data('a'));
  f_.judge->away = false;
  ASSERT_TRUE(InSync(2));
  EXPECT_EQ(GivenUp(), 0);
  const auto want = f_.Contents(0);
  EXPECT_EQ(f_.Contents(1), want);
}

// A write of a part of the block reads the rest first. The filling takes some seconds for another object.
TEST_F(BadBlocksTest, AWriteOfAPartFindsTheRestThere) {
  f_.SetChain({0, 1});
  ASSERT_TRUE(Write(kBadObject, 0, Data('a')).ok());
  f_.SetChain({0});
  for (uint64_t block = 0; block < 512; block += kBlocksOfObject)
    ASSERT_TRUE(Write(kLargeObject, block, Data('b')).ok());
  for (int i : {0, 1}) Restart(i);
  Join(/*for_good=*/true);
  f_.Spoil(0, kBadObject, 3);
  EXPECT_TRUE(Write(kBadObject, 3, "x").ok());
  EXPECT_EQ(f_.judge->chain.members_size(), 1);
  std::string want = Data('a');
  want[3 * kBlockSize] = 'x';
  auto read = ReadAll();
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, want);
}

// The object is copied, for the member has it in another version, with the block that is bad at the head.
TEST_F(BadBlocksTest, AFillingThatMeetsOneAsksTheMemberForIt) {
  f_.SetChain({0, 1});
  ASSERT_TRUE(Write(kBadObject, 0, Data('a')).ok());
  f_.SetChain({0});
  ASSERT_TRUE(Write(kBadObject, 5, "new").ok());
  for (int i : {0, 1}) Restart(i);
  f_.Spoil(0, kBadObject, 3);
  f_.judge->reports.clear();
  Join(/*for_good=*/true);
  ASSERT_TRUE(InSync(2));
  EXPECT_EQ(GivenUp(), 0);
  EXPECT_TRUE(f_.RunUntil([&] { return IsGood(0, 3); })) << "what was mended is flushed";
  const auto want = f_.Contents(0);
  EXPECT_EQ(f_.Contents(1), want);
  EXPECT_EQ(want.size(), 1u);
}

// The OST has its copies again all the same, of that block too: whoever reads it is told, wherever.
TEST_F(BadBlocksTest, AFillingThatMeetsOneThatNobodyHasGoesOn) {
  f_.SetChain({0});
  ASSERT_TRUE(Write(kBadObject, 0, Data('a')).ok());
  Restart(0);
  f_.Spoil(0, kBadObject, 3);
  f_.judge->reports.clear();
  Join(/*for_good=*/true);
  ASSERT_TRUE(InSync(2));
  EXPECT_EQ(GivenUp(), 0);
  for (int i : {0, 1}) {
    EXPECT_TRUE(IsGood(i, 2)) << i;
    EXPECT_FALSE(IsGood(i, 3)) << i;
    EXPECT_TRUE(IsGood(i, 4)) << i;
  }
  EXPECT_EQ(ToErrno(ReadAll().status()), EIO);
  ASSERT_TRUE(Write(kBadObject, 3, std::string(kBlockSize, 'n')).ok());
  std::string want = Data('a');
  want.replace(3 * kBlockSize, kBlockSize, kBlockSize, 'n');
  auto read = ReadAll();
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, want);
}

// The member's block in that place is an older one: the checksum that the head has says so.
TEST_F(BadBlocksTest, OtherBytesOfTheMemberAreNotTaken) {
  f_.SetChain({0, 1});
  ASSERT_TRUE(Write(kBadObject, 0, Data('a')).ok());
  f_.SetChain({0});
  ASSERT_TRUE(Write(kBadObject, 3, std::string(kBlockSize, 'n')).ok());
  for (int i : {0, 1}) Restart(i);
  f_.Spoil(0, kBadObject, 3);
  static Counter& repaired = GetCounter("ost.repaired_blocks");
  const int64_t before = repaired.Get();
  Join(/*for_good=*/false);
  const Status read = ReadAll().status();
  EXPECT_EQ(ToErrno(read), EIO) << read;
  EXPECT_THAT(std::string(read.message()), HasSubstr("block 3"));
  EXPECT_EQ(repaired.Get(), before);
  EXPECT_FALSE(IsGood(0, 3));
}

TEST_F(BadBlocksTest, TheOneThatIsBeingFilledHasWhatTheNextMemberHasNot) {
  f_.SetChain({0, 1, 2});
  ASSERT_TRUE(Write(kBadObject, 0, Data('a')).ok());
  for (int i : {0, 1, 2}) Restart(i);
  f_.judge->away = true;
  f_.SetChain({0, 2}, /*joining=*/{1});
  f_.Spoil(0, kBadObject, 3);
  f_.Spoil(2, kBadObject, 3);
  auto read = ReadAll();
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, Data('a'));
}

// It becomes a member in sync while it is asked, and hears of that before the head does.
TEST_F(BadBlocksTest, AMemberThatHearsOfTheNextEpochFirstIsAskedAgain) {
  f_.SetChain({0, 1});
  ASSERT_TRUE(Write(kBadObject, 0, Data('a')).ok());
  for (int i : {0, 1}) Restart(i);
  Join(/*for_good=*/false);
  f_.Spoil(0, kBadObject, 3);
  f_.SetChain({0, 1}, {}, /*head_hears=*/false);
  auto client = f_.Client(0, 6);
  ClientMemory memory(f_.transports[ChainFixture::kServers].get(), kBlocksOfObject * kBlockSize);
  proto::ObjectRequest request;
  ServerFixture::AddRange(request.mutable_read()->add_ranges(), kBadObject, 0, memory.bytes.size(), 0);
  auto reply = std::make_shared<std::optional<StatusOr<proto::ObjectReply>>>();
  Spawn(f_.context.get_executor(), client->Call(std::move(request), CallMemory::kPutTarget, memory.Spans()),
        [reply](StatusOr<proto::ObjectReply> result) { *reply = std::move(result); });
  EXPECT_FALSE(f_.RunUntil([&] { return reply->has_value(); }, 100ms));
  f_.SetChain({0, 1});
  ASSERT_TRUE(f_.RunUntil([&] { return reply->has_value(); }));
  ASSERT_TRUE((*reply)->ok()) << (*reply)->status();
  EXPECT_EQ((**reply)->read().ranges(0).status().error(), 0) << (**reply)->ShortDebugString();
  EXPECT_EQ(memory.bytes, Data('a'));
}

}  // namespace
}  // namespace nacre::ost
