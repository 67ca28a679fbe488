// Several ranges read in one go: what each has is its own.
#include <gtest/gtest.h>

#include <cerrno>

#include "tests/server/object/store_fixture.h"

namespace nacre::ost {
namespace {

constexpr ObjectId kOne{9, 0}, kOther{9, 1}, kMissing{9, 2};

class ReadTogetherTest : public testing::Test {
 protected:
  ReadTogetherTest() : one_(RandomBytes(&f_.random, 40 * kBlockSize + 100)), other_("short") {
    EXPECT_TRUE(f_.Write(kOne, 0, one_).ok());
    EXPECT_TRUE(f_.Write(kOther, 3 * kBlockSize, other_).ok());
    EXPECT_TRUE(f_.Reopen().ok()) << "nothing is cached";
  }

  // Adds a range that lies behind those before it in the sink.
  void Add(ObjectId id, uint64_t offset, uint64_t length) {
    ranges_.push_back({id, offset, length, size_});
    size_ += length;
  }
  StringSink Read() {
    StringSink sink(size_);
    Allotment memory = f_.Run(f_.store->Admit(1, 256));
    f_.Run(ReadAll(&sink, &memory));
    return sink;
  }
  Task<Unit> ReadAll(DataSink* sink, Allotment* memory) {
    co_await f_.store->ReadTogether(ranges_, sink, memory);
    co_return Unit{};
  }

  StoreFixture f_;
  std::string one_, other_;
  std::vector<RangeToRead> ranges_;
  uint64_t size_ = 0;
};

TEST_F(ReadTogetherTest, EachHasItsOwnBytesChecksumsAndHoles) {
  Add(kOne, 7 * kBlockSize, kBlockSize);
  Add(kOne, 100, 5000);
  Add(kMissing, 0, kBlockSize);
  Add(kOther, 2 * kBlockSize, 2 * kBlockSize);
  Add(kOne, 40 * kBlockSize, 10);
  Add(kOne, 7 * kBlockSize, kBlockSize);  // the same once more
  Add(kOne, 41 * kBlockSize, kBlockSize);
  for (int round = 0; round < 2; ++round) {  // from the disk, and from the cache
    StringSink sink = Read();
    const std::string seventh = one_.substr(7 * kBlockSize, kBlockSize);
    for (const RangeToRead& range : ranges_) EXPECT_TRUE(range.result.status.ok()) << range.result.status;
    EXPECT_EQ(sink.data.substr(0, kBlockSize), seventh);
    EXPECT_EQ(ranges_[0].result.crc, Checksums(0, seventh));
    EXPECT_EQ(sink.data.substr(kBlockSize, 5000), one_.substr(100, 5000));
    EXPECT_EQ(ranges_[1].result.crc, Checksums(100, one_.substr(100, 5000)));
    EXPECT_EQ(ranges_[2].result.length, 0u);
    EXPECT_EQ(ranges_[3].result.length, kBlockSize + other_.size());
    ASSERT_EQ(ranges_[3].result.holes.size(), 1u);
    EXPECT_EQ(ranges_[3].result.holes[0].length, kBlockSize);
    EXPECT_EQ(sink.data.substr(ranges_[3].sink_offset + kBlockSize, other_.size()), other_);
    EXPECT_EQ(sink.data.substr(ranges_[4].sink_offset, 10), one_.substr(40 * kBlockSize, 10));
    EXPECT_EQ(sink.data.substr(ranges_[5].sink_offset, kBlockSize), seventh);
    EXPECT_EQ(ranges_[6].result.length, 0u);
    for (RangeToRead& range : ranges_) range.result = {};
    EXPECT_EQ(f_.pool->pinned_pages(), 0u);
  }
}

TEST_F(ReadTogetherTest, WhatLiesTogetherInTheSinkIsDeliveredInOneCall) {
  for (uint64_t i = 0; i < 20; ++i) Add(kOne, (i * 7) % 40 * kBlockSize, kBlockSize);
  EXPECT_EQ(Read().deliveries, 1);
}

TEST_F(ReadTogetherTest, ABadBlockFailsItsRangesAlone) {
  Chunk chunk;
  ASSERT_TRUE(LoadChunk(&f_.kv, kOne, 0, &chunk).ok());
  const std::string garbage(kBlockSize, 'g');
  std::vector<std::span<const std::byte>> buffers(1, AsBytes(garbage));
  ASSERT_TRUE(f_.Run(f_.disk.Write(chunk.physical[8], buffers)).ok());
  Add(kOne, 7 * kBlockSize, kBlockSize);
  Add(kOne, 8 * kBlockSize, kBlockSize);
  Add(kOne, 9 * kBlockSize, kBlockSize);
  Add(kOne, 8 * kBlockSize + 5, 10);
  const StringSink sink = Read();
  EXPECT_TRUE(ranges_[0].result.status.ok());
  EXPECT_EQ(ToErrno(ranges_[1].result.status), EIO);
  EXPECT_TRUE(ranges_[2].result.status.ok());
  EXPECT_EQ(ToErrno(ranges_[3].result.status), EIO);
  EXPECT_EQ(sink.data.substr(0, kBlockSize), one_.substr(7 * kBlockSize, kBlockSize));
  EXPECT_EQ(sink.data.substr(kBlockSize, kBlockSize), std::string(kBlockSize, '\0'));
  EXPECT_EQ(sink.data.substr(2 * kBlockSize, kBlockSize), one_.substr(9 * kBlockSize, kBlockSize));
}

TEST_F(ReadTogetherTest, ABadRangeFailsAlone) {
  Add(kOne, kMaxObjectBlocks * kBlockSize, kBlockSize);
  Add(kOne, 0, 10);
  const StringSink sink = Read();
  EXPECT_EQ(ToErrno(ranges_[0].result.status), EFBIG);
  EXPECT_TRUE(ranges_[1].result.status.ok());
  EXPECT_EQ(sink.data.substr(kBlockSize, 10), one_.substr(0, 10));
}

// A range that is being changed is waited for when the others have been read, with nothing locked.
TEST_F(ReadTogetherTest, OneThatIsLockedKeepsNoneOfTheOthers) {
  const std::shared_ptr<ObjectState> object = f_.store->Acquire(kOne).value();
  RangeLock::Guard guard = object->locks.TryLock(7, 8, /*exclusive=*/true);
  ASSERT_TRUE(guard);
  Add(kOne, 7 * kBlockSize, kBlockSize);
  Add(kOne, 9 * kBlockSize, kBlockSize);
  StringSink sink(size_);
  Allotment memory = f_.Run(f_.store->Admit(1, 256));
  bool ended = false;
  Spawn(f_.context.get_executor(), ReadAll(&sink, &memory), [&ended](Unit) { ended = true; });
  f_.context.restart();
  f_.context.poll();
  EXPECT_FALSE(ended);
  EXPECT_EQ(sink.data.substr(kBlockSize, kBlockSize), one_.substr(9 * kBlockSize, kBlockSize));
  EXPECT_TRUE(object->locks.TryLock(9, 10, /*exclusive=*/true));
  guard.Release();
  f_.context.restart();
  f_.context.poll();
  EXPECT_TRUE(ended);
  EXPECT_EQ(sink.data.substr(0, kBlockSize), one_.substr(7 * kBlockSize, kBlockSize));
}

}  // namespace
}  // namespace nacre::ost
