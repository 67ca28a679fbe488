#include "common/range_lock.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <cerrno>
#include <iterator>
#include <list>
#include <memory>
#include <optional>
#include <random>

#include "common/cancellation.h"

namespace nacre {
namespace {

class RangeLockTest : public testing::Test {
 protected:
  using Held = std::optional<RangeLock::Guard>;

  void Take(uint64_t first, uint64_t end, bool exclusive, Held* out) {
    Spawn(context_.get_executor(),
          [](RangeLock* lock, uint64_t first, uint64_t end, bool exclusive, Held* out) -> Task<void> {
            out->emplace(co_await lock->Lock(first, end, exclusive));
          }(&lock_, first, end, exclusive, out));
    Poll();
  }
  void TakeAll(RangeLock::Ranges ranges, Held* out) {
    Spawn(context_.get_executor(), [](RangeLock* lock, RangeLock::Ranges ranges, Held* out) -> Task<void> {
      out->emplace(co_await lock->Lock(std::move(ranges), true));
    }(&lock_, std::move(ranges), out));
    Poll();
  }
  void Drop(Held* held) {
    held->reset();
    Poll();
  }
  void Poll() {
    context_.restart();
    context_.poll();
  }

  asio::io_context context_;
  RangeLock lock_;
};

TEST_F(RangeLockTest, ReadersShareWritersExclude) {
  Held reader, other, writer, apart;
  Take(0, 10, false, &reader);
  Take(5, 15, false, &other);
  Take(8, 9, true, &writer);
  Take(20, 30, true, &apart);
  EXPECT_TRUE(reader && other && apart);
  EXPECT_FALSE(writer);
  Drop(&reader);
  EXPECT_FALSE(writer);
  Drop(&other);
  EXPECT_TRUE(writer);
}

TEST_F(RangeLockTest, TryLockNeverWaits) {
  RangeLock::Guard reader = lock_.TryLock(0, 10, false);
  ASSERT_TRUE(reader);
  EXPECT_TRUE(lock_.TryLock(5, 15, false));
  EXPECT_FALSE(lock_.TryLock(5, 15, true));
  EXPECT_TRUE(lock_.TryLock(10, 15, true));
  reader.Release();
  EXPECT_TRUE(lock_.TryLock(5, 15, true));
}

TEST_F(RangeLockTest, FirstComeFirstServedAmongThoseThatOverlap) {
  Held held, writer, late_reader, elsewhere;
  Take(0, 10, false, &held);
  Take(0, 10, true, &writer);
  Take(5, 6, false, &late_reader);
  Take(10, RangeLock::kEnd, true, &elsewhere);
  EXPECT_FALSE(writer);
  EXPECT_FALSE(late_reader) << "a reader does not overtake the writer that waits";
  EXPECT_TRUE(elsewhere);
  Drop(&held);
  EXPECT_TRUE(writer);
  EXPECT_FALSE(late_reader);
  Drop(&writer);
  EXPECT_TRUE(late_reader);
}

TEST_F(RangeLockTest, SeveralRangesAreTakenAtOnce) {
  Held held, reader, writer, between;
  Take(0, 1, true, &held);
  Take(0, 30, false, &reader);
  TakeAll({{10, 11}, {20, 21}}, &writer);
  Take(12, 20, true, &between);
  EXPECT_FALSE(reader || writer || between) << "the reader came before them";
  Drop(&held);
  EXPECT_TRUE(reader);
  EXPECT_FALSE(writer || between);
  Drop(&reader);
  EXPECT_TRUE(writer && between) << "what lies between the ranges is free";
}

// A writer waits behind a reader, and another reader behind the writer, who gives up: the reader passes.
TEST_F(RangeLockTest, WhoGivesUpIsInNobodysWay) {
  Held reads, behind, after;
  Take(0, 10, false, &reads);
  auto cancellation = std::make_shared<Cancellation>();
  Held gives_up;
  Spawn(
      context_.get_executor(),
      [](RangeLock* lock, Held* out) -> Task<void> {
        out->emplace(co_await lock->LockUnlessCancelled(0, 10, true));
      }(&lock_, &gives_up),
      [] {}, cancellation);
  Poll();
  Take(0, 10, false, &behind);
  EXPECT_FALSE(gives_up.has_value());
  EXPECT_FALSE(behind.has_value());
  cancellation->Cancel(ErrnoError(EINTR, "killed"));
  Poll();
  ASSERT_TRUE(gives_up.has_value());
  EXPECT_FALSE(static_cast<bool>(*gives_up));
  EXPECT_TRUE(behind.has_value());
  Drop(&reads);
  Drop(&behind);
  Take(0, 10, true, &after);
  EXPECT_TRUE(after.has_value());
}

// The rule, applied to all who came earlier: whoever holds what he asked for goes on doing so, and whoever
// waits does so for somebody before him with whom he conflicts.
TEST_F(RangeLockTest, GrantsWhatTheRuleGrants) {
  struct Asked {
    uint64_t first, end;
    bool exclusive, granted = false;
    Held held{};
  };
  std::mt19937_64 random(1);
  std::list<Asked> asked;
  for (int step = 0; step < 3000; ++step) {
    if (asked.size() < 12 && random() % 2 == 0) {
      const uint64_t first = random() % 20;
      Asked& fresh = asked.emplace_back(Asked{first, first + 1 + random() % 6, random() % 3 == 0});
      Take(fresh.first, fresh.end, fresh.exclusive, &fresh.held);
    } else if (!asked.empty()) {
      auto gone = std::next(asked.begin(), static_cast<ptrdiff_t>(random() % asked.size()));
      if (!gone->held) continue;  // it waits still
      Drop(&gone->held);
      asked.erase(gone);
    }
    for (auto one = asked.begin(); one != asked.end(); ++one) {
      const bool free = std::none_of(asked.begin(), one, [&](const Asked& other) {
        return (one->exclusive || other.exclusive) && one->first < other.end && other.first < one->end;
      });
      one->granted = one->granted || free;
      EXPECT_EQ(one->held.has_value(), one->granted) << "step " << step;
    }
  }
  while (!asked.empty()) {  // those who wait are granted what they asked for
    const auto held = std::ranges::find_if(asked, [](const Asked& one) { return one.held.has_value(); });
    ASSERT_NE(held, asked.end());
    Drop(&held->held);
    asked.erase(held);
  }
}

}  // namespace
}  // namespace nacre
