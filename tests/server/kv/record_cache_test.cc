#include "server/kv/record_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "common/ids.h"

namespace nacre {
namespace {

const Fid kCached{5, 1, 0};

std::shared_ptr<const int> Value(int value) { return std::make_shared<const int>(value); }

class RecordCacheTest : public testing::Test {
 protected:
  uint64_t Ask() {
    uint64_t ticket = 0;
    cache.Find(kCached, &ticket);
    return ticket;
  }
  std::shared_ptr<const int> Found() {
    uint64_t ticket = 0;
    return cache.Find(kCached, &ticket);
  }

  RecordCache<Fid, int> cache{100};
};

TEST_F(RecordCacheTest, KeepsWhatWasRead) {
  cache.Insert(kCached, Value(1), Ask());
  ASSERT_NE(Found(), nullptr);
  EXPECT_EQ(*Found(), 1);
}

TEST_F(RecordCacheTest, AReaderFromBeforeAWriteInsertsNothing) {
  uint64_t ticket = Ask();
  cache.BeginWrite(kCached);
  cache.Insert(kCached, Value(1), ticket);
  EXPECT_EQ(Found(), nullptr);
  cache.EndWrite(kCached, Value(2));
  cache.Insert(kCached, Value(1), ticket);
  EXPECT_EQ(*Found(), 2);
}

TEST_F(RecordCacheTest, AReaderFromDuringAWriteInsertsNothing) {
  cache.BeginWrite(kCached);
  uint64_t ticket = Ask();
  cache.EndWrite(kCached, Value(2));
  cache.Insert(kCached, Value(1), ticket);
  ASSERT_NE(Found(), nullptr);
  EXPECT_EQ(*Found(), 2);
}

TEST_F(RecordCacheTest, AFailedWriteLeavesNothing) {
  cache.Insert(kCached, Value(1), Ask());
  cache.BeginWrite(kCached);
  cache.EndWrite(kCached, nullptr);
  EXPECT_EQ(Found(), nullptr);
  cache.Insert(kCached, Value(1), Ask());
  EXPECT_EQ(*Found(), 1);
}

TEST(RecordCacheRoom, IsForWhatIsAskedFor) {
  constexpr uint32_t kRoom = 1600, kAskedFor = 100, kOthers = 50'000;
  RecordCache<Fid, int> cache(kRoom);
  uint64_t ticket = 0;
  const auto read = [&](Fid key) {
    if (cache.Find(key, &ticket) != nullptr) return true;
    cache.Insert(key, Value(1), ticket);
    return false;
  };
  for (uint32_t i = 0; i < kAskedFor; ++i) read(Fid{5, i, 0});
  for (uint32_t i = 0; i < kOthers; ++i) {
    EXPECT_TRUE(read(Fid{5, i % kAskedFor, 0})) << i;
    read(Fid{6, i, 0});
  }
  uint32_t kept = 0;
  for (uint32_t i = 0; i < kOthers; ++i) kept += cache.Find(Fid{6, i, 0}, &ticket) != nullptr ? 1 : 0;
  EXPECT_EQ(kept, kRoom - kAskedFor);
}

// Places of what was removed are used again, and what is being written keeps its own.
TEST(RecordCacheRoom, IsUsedAgain) {
  RecordCache<Fid, int> cache(1);
  uint64_t ticket = 0;
  cache.BeginWrite(kCached);
  cache.EndWrite(kCached, Value(1));
  cache.BeginWrite(kCached);
  for (uint32_t i = 0; i < 1000; ++i) {
    const Fid key{6, i, 0};
    cache.BeginWrite(key);
    cache.EndWrite(key, Value(2));
    EXPECT_NE(cache.Find(key, &ticket), nullptr);
    cache.BeginWrite(key);
    cache.EndWrite(key, nullptr);
    EXPECT_EQ(cache.Find(key, &ticket), nullptr);
  }
  cache.EndWrite(kCached, Value(3));
  ASSERT_NE(cache.Find(kCached, &ticket), nullptr);
  EXPECT_EQ(*cache.Find(kCached, &ticket), 3);
}

// Its owner is asked about what is not here, and not about what is being written: of that only the store
// knows.
TEST(RecordCacheHooks, AnswerForWhatIsMissing) {
  std::vector<Fid> evicted;
  RecordCache<Fid, int> cache(1, {.missing = [](const Fid&) { return Value(7); },
                                  .evicted = [&](const Fid& key) { evicted.push_back(key); }});
  uint64_t ticket = 0;
  EXPECT_EQ(*cache.Find(kCached, &ticket), 7);
  cache.BeginWrite(kCached);
  EXPECT_EQ(cache.Find(kCached, &ticket), nullptr);
  cache.EndWrite(kCached, Value(1));
  EXPECT_EQ(*cache.Find(kCached, &ticket), 1);
  constexpr uint32_t kOthers = 1000;  // some of which share the only place of its shard
  for (uint32_t i = 1; i <= kOthers; ++i) {
    cache.BeginWrite(Fid{6, i, 0});
    cache.EndWrite(Fid{6, i, 0}, Value(2));
  }
  EXPECT_NE(std::ranges::find(evicted, kCached), evicted.end());
  EXPECT_EQ(*cache.Find(kCached, &ticket), 7);
}

}  // namespace
}  // namespace nacre
