#include "server/metadata/fid_locks.h"

#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <string>

namespace nacre::mds {
namespace {

const Fid kA{5, 1, 0}, kB{5, 2, 0}, kC{5, 3, 0};

class FidLocksTest : public testing::Test {
 protected:
  struct Turn {
    std::optional<FidLocks::Guard> guard;
    bool had() const { return guard.has_value(); }
  };

  // Asks for the locks; the guard lies in the turn once it is had.
  std::shared_ptr<Turn> Ask(std::vector<Fid> fids) {
    auto turn = std::make_shared<Turn>();
    Spawn(context.get_executor(), locks.Lock(std::move(fids)),
          [turn](FidLocks::Guard guard) { turn->guard = std::move(guard); });
    Run();
    return turn;
  }
  void Give(const std::shared_ptr<Turn>& turn) {
    turn->guard->Release();
    Run();
  }
  void Run() {
    context.restart();
    context.poll();
  }

  asio::io_context context;
  FidLocks locks;
};

TEST_F(FidLocksTest, IsExclusive) {
  auto first = Ask({kA});
  ASSERT_TRUE(first->had());
  EXPECT_TRUE(locks.IsHeld(kA));
  auto second = Ask({kA});
  auto other = Ask({kB});
  EXPECT_FALSE(second->had());
  EXPECT_TRUE(other->had());
  Give(first);
  EXPECT_TRUE(second->had());
  Give(second);
  EXPECT_FALSE(locks.IsHeld(kA));
}

TEST_F(FidLocksTest, FirstComeFirstServed) {
  auto first = Ask({kA});
  auto second = Ask({kA});
  auto third = Ask({kA});
  Give(first);
  EXPECT_TRUE(second->had());
  EXPECT_FALSE(third->had());
  Give(second);
  EXPECT_TRUE(third->had());
}

// In whatever order they are named, two sets never wait for each other.
TEST_F(FidLocksTest, SetsAreTakenInOneOrder) {
  auto b = Ask({kB});
  auto forwards = Ask({kA, kB, kC});
  auto backwards = Ask({kC, kB, kA});
  EXPECT_FALSE(forwards->had());
  EXPECT_FALSE(backwards->had());
  Give(b);
  ASSERT_TRUE(forwards->had());
  EXPECT_FALSE(backwards->had());
  Give(forwards);
  EXPECT_TRUE(backwards->had());
}

TEST_F(FidLocksTest, RepeatedAndEmptyFidsDoNotCount) {
  auto turn = Ask({kA, {}, kA});
  ASSERT_TRUE(turn->had());
  EXPECT_TRUE(turn->guard->Holds(kA));
  EXPECT_FALSE(turn->guard->Holds({}));
  Give(turn);
  EXPECT_FALSE(locks.IsHeld(kA));
  EXPECT_TRUE(Ask({})->had());
}

TEST_F(FidLocksTest, AGuardThatIsMovedReleasesOnce) {
  auto turn = Ask({kA});
  FidLocks::Guard moved = std::move(*turn->guard);
  turn->guard.reset();
  EXPECT_TRUE(locks.IsHeld(kA));
  auto next = Ask({kA});
  moved = FidLocks::Guard();
  Run();
  EXPECT_TRUE(next->had());
}

}  // namespace
}  // namespace nacre::mds
