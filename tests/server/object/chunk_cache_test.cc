#include "server/object/chunk_cache.h"

#include <gtest/gtest.h>

#include <functional>
#include <utility>

#include "server/kv/mem_kv.h"
#include "tests/common/await.h"

namespace nacre::ost {
namespace {

constexpr ObjectId kId{7, 1};

// Counts look-ups, and lets something happen in the middle of the next one.
class WatchedKv : public MemKv {
 public:
  StatusOr<std::string> Get(std::string_view key) override {
    ++gets;
    StatusOr<std::string> value = MemKv::Get(key);
    if (auto act = std::exchange(meanwhile, nullptr)) act();
    return value;
  }
  int gets = 0;
  std::function<void()> meanwhile;
};

class ChunkCacheTest : public testing::Test {
 protected:
  static Chunk Mapping(uint64_t physical) {
    Chunk chunk;
    chunk.MapWritten(0, physical, static_cast<uint32_t>(physical));
    return chunk;
  }
  void Store(uint64_t index, const Chunk& chunk) {
    KvBatch batch;
    batch.Put(ExtentKey(kId, index), EncodeChunk(chunk));
    ASSERT_TRUE(Await(kv_.Commit(std::move(batch))).ok());
  }
  // As a commit of others tells it; null: it has failed.
  void Change(uint64_t index, const Chunk& chunk, bool known = true) {
    cache_.BeginChange(kId, index);
    Store(index, chunk);
    cache_.EndChange(kId, index, known ? &chunk : nullptr);
  }
  // Where the chunk's first block is; 0: it is not mapped.
  uint64_t Place(uint64_t index) {
    const StatusOr<ChunkPtr> chunk = cache_.Load(kId, index);
    EXPECT_TRUE(chunk.ok());
    return chunk.ok() && (*chunk)->is_mapped(0) ? (*chunk)->physical[0] : 0;
  }

  WatchedKv kv_;
  ChunkCache cache_{&kv_, ChunkCache::kLeast};
};

TEST_F(ChunkCacheTest, LooksUpOnceAndLearnsOfChanges) {
  EXPECT_EQ(Place(3), 0u) << "a chunk without blocks is one, too";
  EXPECT_EQ(Place(3), 0u);
  EXPECT_EQ(kv_.gets, 1);
  Change(3, Mapping(50));
  EXPECT_EQ(Place(3), 50u);
  EXPECT_EQ(kv_.gets, 1);
}

TEST_F(ChunkCacheTest, WhatNobodyKnowsIsLookedUpAgain) {
  Store(3, Mapping(50));
  EXPECT_EQ(Place(3), 50u);
  Change(3, Mapping(60), /*known=*/false);
  EXPECT_EQ(Place(3), 60u);
  Change(4, Mapping(70), /*known=*/false);
  EXPECT_EQ(Place(3), 60u);
  EXPECT_EQ(kv_.gets, 2);
}

// Another block of the chunk is changed while somebody looks it up: what he has seen of that block must not
// be what the next one sees.
TEST_F(ChunkCacheTest, WhatWasLookedUpBeforeAChangeIsNotKept) {
  Store(3, Mapping(50));
  kv_.meanwhile = [this] { Change(3, Mapping(60)); };
  EXPECT_EQ(Place(3), 50u);
  EXPECT_EQ(Place(3), 60u);
  Store(4, Mapping(70));
  kv_.meanwhile = [this] { Change(4, Mapping(80), /*known=*/false); };
  EXPECT_EQ(Place(4), 70u);
  EXPECT_EQ(Place(4), 80u);
}

TEST_F(ChunkCacheTest, KeepsWhatIsAskedForAndNoMoreThanItMay) {
  constexpr uint64_t kMany = 4 * ChunkCache::kLeast;
  for (uint64_t index = 0; index < kMany; ++index) Store(index, Mapping(index + 1));
  for (uint64_t index = 0; index < kMany; ++index) {
    EXPECT_EQ(Place(index), index + 1);
    EXPECT_EQ(Place(0), 1u);
  }
  EXPECT_EQ(kv_.gets, static_cast<int>(kMany)) << "the one that was asked for stayed";
  for (uint64_t index = 0; index < kMany; ++index) EXPECT_EQ(Place(index), index + 1);
  EXPECT_GT(kv_.gets, static_cast<int>(2 * kMany - ChunkCache::kLeast - 1));
}

TEST_F(ChunkCacheTest, AWalkLoadsAChunkWhereItEntersOne) {
  for (uint64_t index = 0; index < 3; ++index) Store(index, Mapping(10 * (index + 1)));
  ChunkWalk walk(&cache_, kId);
  for (uint64_t block = kChunkBlocks / 2; block < 3 * kChunkBlocks; ++block) {
    ASSERT_TRUE(walk.To(block).ok());
    EXPECT_EQ(walk.chunk()->physical[0], 10 * (block / kChunkBlocks + 1)) << block;
  }
  EXPECT_EQ(kv_.gets, 3);
  ASSERT_TRUE(walk.To(0).ok()) << "back again";
  EXPECT_EQ(walk.chunk()->physical[0], 10u);
}

TEST_F(ChunkCacheTest, ADamagedRecordIsAnErrorEachTime) {
  KvBatch batch;
  batch.Put(ExtentKey(kId, 3), "damaged");
  ASSERT_TRUE(Await(kv_.Commit(std::move(batch))).ok());
  EXPECT_EQ(cache_.Load(kId, 3).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(cache_.Load(kId, 3).status().code(), absl::StatusCode::kDataLoss);
  Store(3, Mapping(50));
  EXPECT_EQ(Place(3), 50u);
}

}  // namespace
}  // namespace nacre::ost
