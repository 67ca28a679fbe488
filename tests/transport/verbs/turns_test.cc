#include "transport/verbs/turns.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace nacre::verbs {
namespace {

using ::testing::ElementsAre;
using Log = std::vector<std::string>;

// Has so many parts to post, all of one size, as a channel does.
class Client : public Turns::Taker, public std::enable_shared_from_this<Client> {
 public:
  Client(Turns& turns, Log& posted, std::string name, int parts, uint64_t bytes)
      : turns_(turns), posted_(posted), name_(std::move(name)), bytes_(bytes), left_(parts) {}

  void Pump() {
    while (left_ > 0 && turns_.Take(shared_from_this(), bytes_)) Post();
  }
  bool OnTurn() override {
    if (gone) return false;
    Post();
    Pump();
    return true;
  }

  bool gone = false;

 private:
  void Post() {
    posted_.push_back(name_);
    --left_;
  }

  Turns& turns_;
  Log& posted_;
  const std::string name_;
  const uint64_t bytes_;
  int left_;
};

class TurnsTest : public ::testing::Test {
 protected:
  std::shared_ptr<Client> Make(std::string name, int parts, uint64_t bytes) {
    return std::make_shared<Client>(turns_, posted_, std::move(name), parts, bytes);
  }

  Turns turns_{100};
  Log posted_;
};

TEST_F(TurnsTest, OneWithMuchToTransferDoesNotHoldUpTheOthers) {
  auto large = Make("large", 5, 50), small = Make("small", 1, 50), other = Make("other", 2, 50);
  large->Pump();
  EXPECT_THAT(posted_, ElementsAre("large", "large"));
  small->Pump();
  other->Pump();
  for (const auto& taker : {large, large, small, other, large, other}) turns_.Return(taker.get(), 50);
  EXPECT_THAT(posted_, ElementsAre("large", "large", "large", "small", "other", "large", "other", "large"));
}

// Nothing of a peer that has died comes back before the device gives up.
TEST_F(TurnsTest, OneThatIsStuckLeavesSomeToTheOthers) {
  auto stuck = Make("stuck", 100, 5), other = Make("other", 40, 5);
  stuck->Pump();
  const size_t taken = posted_.size();
  EXPECT_GE(taken, 15u) << "it may have most";
  EXPECT_LE(taken, 18u);
  other->Pump();
  for (int i = 0; i < 39; ++i) turns_.Return(other.get(), 5);
  EXPECT_EQ(posted_.size(), taken + 40);
}

TEST_F(TurnsTest, NoMoreIsUnderWayThanAllowed) {
  auto a = Make("a", 2, 60), b = Make("b", 1, 40), c = Make("c", 1, 1);
  a->Pump();
  b->Pump();  // would fit, but it is not its turn
  c->Pump();
  EXPECT_THAT(posted_, ElementsAre("a"));
  turns_.Return(a.get(), 60);
  EXPECT_THAT(posted_, ElementsAre("a", "a", "b"));
  turns_.Return(b.get(), 40);
  EXPECT_THAT(posted_, ElementsAre("a", "a", "b", "c"));
}

TEST_F(TurnsTest, OneThatIsLargerThanTheLimitGoesAlone) {
  auto small = Make("small", 1, 10), huge = Make("huge", 1, 1000);
  small->Pump();
  huge->Pump();
  EXPECT_THAT(posted_, ElementsAre("small"));
  turns_.Return(small.get(), 10);
  EXPECT_THAT(posted_, ElementsAre("small", "huge"));
}

TEST_F(TurnsTest, WhoHasLeftIsPassedOver) {
  auto a = Make("a", 1, 100), left = Make("left", 1, 100), gone = Make("gone", 1, 100), b = Make("b", 1, 100);
  a->Pump();
  left->Pump();
  gone->Pump();
  b->Pump();
  turns_.Leave(left.get());
  gone->gone = true;
  turns_.Return(a.get(), 100);
  EXPECT_THAT(posted_, ElementsAre("a", "b"));
}

}  // namespace
}  // namespace nacre::verbs
