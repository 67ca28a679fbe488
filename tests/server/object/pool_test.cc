#include "server/object/pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <cerrno>
#include <chrono>
#include <thread>

#include "common/clock.h"
#include "tests/transport/large_pages.h"

namespace nacre::ost {
namespace {

class PoolTest : public testing::Test {
 protected:
  std::shared_ptr<BufferPool> pool_ = *BufferPool::Create(4 << 20, nullptr);
  asio::io_context context_;

  template <typename T>
  T Run(Task<T> task) {
    std::optional<T> result;
    Spawn(context_.get_executor(), [](Task<T> task, std::optional<T>* result) -> Task<void> {
      result->emplace(co_await std::move(task));
    }(std::move(task), &result));
    context_.restart();
    context_.poll();
    EXPECT_TRUE(result.has_value()) << "it waits";
    return *std::move(result);
  }
  // A share of the pool for so many pages, as a call of its own has it.
  Allotment::Share Share(size_t count) {
    Allotment allotment = Run(pool_->admission().Admit(1, 0, count));
    return Run(allotment.Take(count));
  }
  BufferPool::Pages Take(size_t count) { return pool_->Take(Share(count), count); }
  // The page that holds the block.
  std::optional<uint32_t> CachedPage(uint64_t key) {
    std::vector<uint64_t> keys{key};
    std::vector<bool> cached;
    std::byte copy[kBlockSize];
    if (!pool_->Copy(key, copy)) return std::nullopt;
    return pool_->Take(Share(1), keys, &cached).index(0);
  }
};

TEST_F(PoolTest, TooSmallIsRefused) {
  Status status = BufferPool::Create(100, nullptr).status();
  EXPECT_EQ(ToErrno(status), EINVAL);
}

TEST_F(PoolTest, PagesTakenTogetherLieTogether) {
  std::optional<BufferPool::Pages> pages = Take(256);
  for (size_t i = 1; i < 256; ++i) EXPECT_EQ(pages->data(i), pages->data(0) + i * kBlockSize);
  EXPECT_EQ(pool_->pinned_pages(), 256u);
  pages.reset();
  EXPECT_EQ(pool_->pinned_pages(), 0u);
  EXPECT_EQ(pool_->admission().free_pages(), pool_->bytes() / kBlockSize);
}

// It looks ahead by a few, and at the end there is less.
TEST_F(PoolTest, EachOfManyIsFoundWhereItIs) {
  for (size_t count = 1; count <= 40; ++count) {
    std::vector<uint64_t> keys, known;
    std::vector<uint32_t> pages;
    for (uint64_t i = 0; i < count; ++i) keys.push_back(BufferPool::CacheKey(1, count * 1000 + i * 7));
    BufferPool::Pages taken = Take(count);
    for (size_t i = 0; i < count; i += 1 + i % 3) {
      known.push_back(keys[i]);
      pages.push_back(taken.index(i));
    }
    pool_->Publish(known, pages);
    std::vector<bool> cached;
    const BufferPool::Pages found = pool_->Take(Share(count), keys, &cached);
    ASSERT_EQ(found.size(), count);
    for (size_t i = 0, next = 0; i < count; ++i) {
      const bool is_known = next < known.size() && known[next] == keys[i];
      EXPECT_EQ(cached[i], is_known) << i << " of " << count;
      if (!is_known) continue;
      EXPECT_EQ(found.index(i), pages[next]) << i << " of " << count;
      ++next;
    }
  }
}

// As far as it has been used, and a little further. Made by a thread of the pool's own, so it may take a
// while.
TEST(LargePoolTest, LiesInLargePages) {
  if (const Status can = CanMakeLargePages(); !can.ok()) GTEST_SKIP() << can;
  constexpr uint64_t kStep = BufferPool::kLargeStep, kAhead = BufferPool::kLargeAhead;
  constexpr uint64_t kSize = kAhead + 2 * kStep + kStep / 2,
                     kEnd = 3 << 19;  // no multiple of a large page's size
  std::shared_ptr<BufferPool> pool = *BufferPool::Create(kSize + kEnd, nullptr);
  asio::io_context context;
  auto take = [&](uint64_t bytes) {
    const size_t count = bytes / kBlockSize;
    Spawn(context.get_executor(), [](BufferPool* pool, size_t count) -> Task<void> {
      Allotment allotment = co_await pool->admission().Admit(1, 0, count);
      (void)pool->Take(co_await allotment.Take(count), count);
    }(pool.get(), count));
    context.restart();
    context.poll();
  };
  auto large_after = [&](uint64_t expected) {
    const Duration end = RealClock().Now() + 10s;
    while (LargePageBytes(pool->PageData(0)) < expected && RealClock().Now() < end) {
      std::this_thread::sleep_for(1ms);
    }
    return LargePageBytes(pool->PageData(0));
  };
  // The kernel may leave out some, where it is busy with their pages itself.
  auto expect_large = [&](uint64_t expected) {
    const uint64_t large = large_after(expected);
    EXPECT_LE(large, expected);
    EXPECT_GE(large, expected / 4 * 3);
  };
  take(kBlockSize);
  expect_large(kStep + kAhead);
  for (uint64_t used = kBlockSize; used < kStep; used += kStep / 4) take(kStep / 4);
  expect_large(2 * kStep + kAhead);
  for (uint64_t used = kStep; used < kSize; used += kStep / 4) take(kStep / 4);
  expect_large(kSize);
}

TEST_F(PoolTest, WhatIsPublishedIsFoundUntilItIsReplacedOrEvicted) {
  std::optional<BufferPool::Pages> pages = Take(2);
  uint32_t first = pages->index(0), second = pages->index(1);
  std::vector<uint64_t> keys{BufferPool::CacheKey(1, 10), BufferPool::CacheKey(1, 11)};
  std::vector<uint32_t> indexes{first, second};
  pool_->Publish(keys, indexes);
  pages.reset();
  EXPECT_EQ(CachedPage(keys[0]), first);
  EXPECT_EQ(CachedPage(BufferPool::CacheKey(2, 10)), std::nullopt) << "another OST's block";
  pool_->Drop(1, {10, 1});
  EXPECT_EQ(CachedPage(keys[0]), std::nullopt);
  EXPECT_EQ(CachedPage(keys[1]), second);
  // The page was hit, so that it outlives one round of the hand, and not two.
  for (int i = 0; i < 4; ++i) Take(255);
  EXPECT_EQ(CachedPage(keys[1]), second);
  for (int i = 0; i < 9; ++i) Take(256);
  EXPECT_EQ(CachedPage(keys[1]), std::nullopt);
}

TEST_F(PoolTest, CachedBlocksAreFoundBesideFreshPages) {
  std::optional<BufferPool::Pages> pages = Take(2);
  std::memset(pages->data(1), 'x', kBlockSize);
  const uint32_t page = pages->index(1);
  pool_->Publish(std::vector<uint64_t>{11}, std::vector<uint32_t>{page});
  pages.reset();
  std::vector<bool> cached;
  const BufferPool::Pages both = pool_->Take(Share(3), std::vector<uint64_t>{10, 11, 12}, &cached);
  EXPECT_EQ(cached, (std::vector<bool>{false, true, false}));
  EXPECT_EQ(both.index(1), page);
  EXPECT_NE(both.index(0), page);
  EXPECT_NE(both.index(2), page);
  EXPECT_EQ(pool_->pinned_pages(), 3u);
  std::string copy(kBlockSize, '\0');
  EXPECT_TRUE(pool_->Copy(11, reinterpret_cast<std::byte*>(copy.data())));
  EXPECT_EQ(copy, std::string(kBlockSize, 'x'));
}

// A file that is written over and over, or made and removed, leaves the others cached.
TEST_F(PoolTest, PagesOfFreedBlocksAreTakenBeforeCachedOnes) {
  constexpr size_t kPart = 256;
  const size_t all = pool_->bytes() / kBlockSize;
  std::vector<uint32_t> indices;
  for (size_t begin = 0; begin < all; begin += kPart) {
    BufferPool::Pages pages = Take(kPart);
    std::vector<uint64_t> keys;
    for (size_t i = 0; i < kPart; ++i) {
      keys.push_back(BufferPool::CacheKey(3, 1000 + begin + i));
      indices.push_back(pages.index(i));
    }
    pool_->Publish(keys, std::span(indices).last(kPart));
  }
  pool_->Drop(3, {1100, 64});
  pool_->Drop(3, {1300, 2});  // too few to be looked for
  {
    BufferPool::Pages pages = Take(64);
    for (size_t i = 0; i < 64; ++i) EXPECT_EQ(pages.index(i), indices[100 + i]) << "together, as they lay";
  }
  for (size_t i = 0; i < all; ++i) {
    const bool freed = (i >= 100 && i < 164) || i == 300 || i == 301;
    EXPECT_EQ(CachedPage(BufferPool::CacheKey(3, 1000 + i)).has_value(), !freed) << i;
  }
}

TEST_F(PoolTest, AFreedPageThatIsInUseIsNotTaken) {
  std::vector<uint64_t> keys(64);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = BufferPool::CacheKey(0, i);
  BufferPool::Pages read = Take(64);
  std::vector<uint32_t> indices(64);
  for (size_t i = 0; i < 64; ++i) indices[i] = read.index(i);
  pool_->Publish(keys, indices);
  pool_->Drop(0, {0, 64});
  BufferPool::Pages others = Take(64);
  for (size_t i = 0; i < 64; ++i) EXPECT_EQ(std::ranges::count(indices, others.index(i)), 0);
}

TEST_F(PoolTest, PinnedPagesAreNeverTaken) {
  BufferPool::Pages mine = Take(1);
  std::byte* data = mine.data(0);
  *data = std::byte{42};
  for (int i = 0; i < 20; ++i) {
    BufferPool::Pages other = Take(256);
    for (size_t p = 0; p < other.size(); ++p) ASSERT_NE(other.data(p), data);
  }
  EXPECT_EQ(*data, std::byte{42});
}

// Cached pages count as well, also those that several have pinned: there is always a page to be taken.
TEST_F(PoolTest, EveryShareFindsItsPages) {
  const size_t total = pool_->bytes() / kBlockSize;
  std::vector<uint64_t> keys;
  for (uint64_t block = 0; block < 200; ++block) keys.push_back(BufferPool::CacheKey(0, block));
  {
    BufferPool::Pages pages = Take(keys.size());
    std::vector<uint32_t> indexes;
    for (size_t i = 0; i < pages.size(); ++i) indexes.push_back(pages.index(i));
    pool_->Publish(keys, indexes);
  }
  std::vector<BufferPool::Pages> held;
  std::vector<bool> cached;
  for (SessionId client = 0; pool_->admission().free_pages() >= keys.size(); ++client) {
    Allotment allotment = Run(pool_->admission().Admit(client, 0, keys.size()));
    Allotment::Share share = Run(allotment.Take(keys.size()));
    if (client % 2 == 0) {
      held.push_back(pool_->Take(std::move(share), keys, &cached));
    } else {
      held.push_back(pool_->Take(std::move(share), keys.size()));
    }
    if (client > 3) break;
  }
  EXPECT_LE(pool_->pinned_pages(), total);
  EXPECT_GE(held.size(), 4u);
}

}  // namespace
}  // namespace nacre::ost
