#include "server/object/pool.h"

#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <cerrno>

namespace nacre::ost {
namespace {

class PoolTest : public testing::Test {
 protected:
  std::shared_ptr<BufferPool> pool_ = *BufferPool::Create(BufferPool::kMinBytes, nullptr);
  asio::io_context context_;

  void Acquire(size_t count, std::optional<BufferPool::Pages>* out) {
    Spawn(context_.get_executor(),
          [](std::shared_ptr<BufferPool> pool, size_t count, std::optional<BufferPool::Pages>* out)
              -> Task<void> { out->emplace(co_await pool->Acquire(count)); }(pool_, count, out));
    Poll();
  }
  void Poll() {
    context_.restart();
    context_.poll();
  }
  uint32_t CachedPage(uint64_t key) {
    std::vector<uint32_t> found;
    std::vector<uint64_t> keys{key};
    pool_->Pin(keys, &found);
    if (found[0] != BufferPool::kNone) pool_->Unpin(found);
    return found[0];
  }
};

TEST_F(PoolTest, TooSmallIsRefused) {
  Status status = BufferPool::Create(100, nullptr).status();
  EXPECT_EQ(ToErrno(status), EINVAL);
}

TEST_F(PoolTest, PagesTakenTogetherLieTogether) {
  std::optional<BufferPool::Pages> pages;
  Acquire(256, &pages);
  ASSERT_TRUE(pages.has_value());
  for (size_t i = 1; i < 256; ++i) EXPECT_EQ(pages->data(i), pages->data(0) + i * kBlockSize);
  EXPECT_EQ(pool_->pinned_pages(), 256u);
  pages.reset();
  EXPECT_EQ(pool_->pinned_pages(), 0u);
}

TEST_F(PoolTest, WaitersAreServedInOrderWhenPagesComeBack) {
  std::optional<BufferPool::Pages> held[4], big, small;
  for (auto& pages : held) Acquire(256, &pages);
  Acquire(200, &big);
  Acquire(1, &small);
  EXPECT_FALSE(big.has_value());
  EXPECT_FALSE(small.has_value()) << "nobody overtakes";
  held[2].reset();
  Poll();
  EXPECT_TRUE(big.has_value());
  EXPECT_TRUE(small.has_value());
}

TEST_F(PoolTest, WhatIsPublishedIsFoundUntilItIsReplacedOrEvicted) {
  std::optional<BufferPool::Pages> pages;
  Acquire(2, &pages);
  uint32_t first = pages->index(0), second = pages->index(1);
  std::vector<uint64_t> keys{BufferPool::CacheKey(1, 10), BufferPool::CacheKey(1, 11)};
  std::vector<uint32_t> indexes{first, second};
  pool_->Publish(keys, indexes);
  pages.reset();
  EXPECT_EQ(CachedPage(keys[0]), first);
  EXPECT_EQ(CachedPage(BufferPool::CacheKey(2, 10)), BufferPool::kNone) << "another OST's block";
  pool_->Drop(1, {10, 1});
  EXPECT_EQ(CachedPage(keys[0]), BufferPool::kNone);
  EXPECT_EQ(CachedPage(keys[1]), second);
  // The page was hit, so that it outlives one round of the hand, and not two.
  for (int i = 0; i < 4; ++i) {
    std::optional<BufferPool::Pages> round;
    Acquire(255, &round);
  }
  EXPECT_EQ(CachedPage(keys[1]), second);
  for (int i = 0; i < 9; ++i) {
    std::optional<BufferPool::Pages> round;
    Acquire(256, &round);
  }
  EXPECT_EQ(CachedPage(keys[1]), BufferPool::kNone);
}

TEST_F(PoolTest, PinnedPagesAreNeverTaken) {
  std::optional<BufferPool::Pages> mine;
  Acquire(1, &mine);
  std::byte* data = mine->data(0);
  *data = std::byte{42};
  for (int i = 0; i < 20; ++i) {
    std::optional<BufferPool::Pages> other;
    Acquire(256, &other);
    for (size_t p = 0; p < other->size(); ++p) ASSERT_NE(other->data(p), data);
  }
  EXPECT_EQ(*data, std::byte{42});
}

}  // namespace
}  // namespace nacre::ost
