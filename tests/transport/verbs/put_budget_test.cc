#include "transport/verbs/put_budget.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace nacre::verbs {
namespace {

constexpr uint64_t kMiB = 1 << 20, kLarge = 512 << 10;

// A call that takes its share of the budget and returns it.
class Taking {
 public:
  // `owner`: that of several; null: its own.
  Taking(const std::shared_ptr<PutBudget>& budget, uint64_t bytes, const void* owner = nullptr)
      : budget_(budget), bytes_(bytes), owner_(owner) {
    if (budget_->Take(bytes_, this->owner(), granted_)) granted_.Set(OkStatus());
  }
  ~Taking() { Return(); }

  // It has its share.
  bool has() const { return granted_.IsSet() && !given_up_; }
  bool told() const { return granted_.IsSet(); }
  void GiveUp() { given_up_ = granted_.Set(absl::CancelledError("enough")); }
  void Cancel() {
    given_up_ = true;
    budget_->Cancel(owner(), absl::UnavailableError("the link has ended"));
  }
  void Return() {
    if (!has()) return;
    const PutBudget::Share share(budget_, bytes_, owner());
    given_up_ = true;
  }

 private:
  const void* owner() const { return owner_ == nullptr ? this : owner_; }

  const std::shared_ptr<PutBudget> budget_;
  const uint64_t bytes_;
  const void* const owner_;
  const OneShot<Status> granted_;
  bool given_up_ = false;
};

class PutBudgetTest : public ::testing::Test {
 protected:
  // 7/8 of it for large calls.
  const std::shared_ptr<PutBudget> budget_ = std::make_shared<PutBudget>(2 * kMiB);
};

TEST_F(PutBudgetTest, LargeCallsWaitInTheirOrder) {
  Taking a(budget_, kLarge), b(budget_, kLarge), c(budget_, kLarge);
  EXPECT_TRUE(a.has() && b.has() && c.has());
  Taking d(budget_, kMiB), e(budget_, 100'000);  // there would be room for the latter
  EXPECT_FALSE(d.has());
  EXPECT_FALSE(e.has());
  a.Return();
  EXPECT_FALSE(d.has());
  EXPECT_FALSE(e.has());
  b.Return();
  EXPECT_TRUE(d.has());
  EXPECT_TRUE(e.has());
}

TEST_F(PutBudgetTest, SmallCallsPassLargeOnes) {
  Taking a(budget_, kMiB), b(budget_, kMiB), c(budget_, kMiB);
  EXPECT_FALSE(b.has());
  Taking small(budget_, kSmallCall);
  EXPECT_TRUE(small.has());
}

TEST_F(PutBudgetTest, SmallCallsWaitForEachOther) {
  std::vector<std::unique_ptr<Taking>> calls;
  for (int i = 0; i < 5; ++i) calls.push_back(std::make_unique<Taking>(budget_, kSmallCall));
  EXPECT_TRUE(calls[3]->has());
  EXPECT_FALSE(calls[4]->has());
  calls[0]->Return();
  EXPECT_TRUE(calls[4]->has());
}

TEST_F(PutBudgetTest, ACallBeyondTheBudgetGoesAlone) {
  Taking a(budget_, kLarge), huge(budget_, 100 * kMiB), b(budget_, kLarge);
  EXPECT_FALSE(huge.has());
  EXPECT_FALSE(b.has());
  a.Return();
  EXPECT_TRUE(huge.has());
  EXPECT_FALSE(b.has());
  huge.Return();
  EXPECT_TRUE(b.has());
}

// A server that hangs keeps what its calls have taken until they time out.
TEST_F(PutBudgetTest, OneServerLeavesSomeToTheOthers) {
  const int hung = 0, other = 0;
  std::vector<std::unique_ptr<Taking>> stuck;
  for (int i = 0; i < 30; ++i) stuck.push_back(std::make_unique<Taking>(budget_, 100'000, &hung));
  EXPECT_TRUE(stuck[10]->has());
  EXPECT_FALSE(stuck[29]->has());
  for (int i = 0; i < 50; ++i) {
    Taking call(budget_, 100'000, &other);
    ASSERT_TRUE(call.has()) << i;
  }
}

TEST_F(PutBudgetTest, WhoDoesNotWaitAnyMoreIsPassedOver) {
  Taking a(budget_, kMiB), given_up(budget_, kMiB), cancelled(budget_, kMiB), last(budget_, kMiB);
  given_up.GiveUp();
  cancelled.Cancel();
  EXPECT_TRUE(cancelled.told());
  EXPECT_FALSE(last.has());
  a.Return();
  EXPECT_TRUE(last.has());
}

}  // namespace
}  // namespace nacre::verbs
