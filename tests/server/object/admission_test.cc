#include "server/object/admission.h"

#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <optional>

#include "common/random.h"

namespace nacre::ost {
namespace {

constexpr uint64_t kPart = Admission::kLeastPart;

class AdmissionTest : public testing::Test {
 protected:
  static constexpr uint64_t kPages = 8 * kPart;

  // A call as it waits, has been admitted, and has pages in use.
  struct Call {
    std::optional<Allotment> allotment;
    std::vector<Allotment::Share> shares;
    bool admitted() const { return allotment.has_value(); }
  };

  void Admit(Call* call, SessionId client, uint64_t pages, size_t ost = 0) {
    Spawn(context_.get_executor(),
          [](std::shared_ptr<Admission> admission, Call* call, SessionId client, uint32_t ost,
             uint64_t pages) -> Task<void> {
            call->allotment.emplace(co_await admission->Admit(client, ost, pages));
          }(admission_, call, client, static_cast<uint32_t>(ost), pages));
    Poll();
  }
  void Take(Call* call, uint64_t pages) {
    Spawn(context_.get_executor(), [](Call* call, uint64_t pages) -> Task<void> {
      Allotment::Share share = co_await call->allotment->Take(pages);
      call->shares.push_back(std::move(share));
    }(call, pages));
    Poll();
  }
  void End(Call* call) {
    call->allotment.reset();
    call->shares.clear();
    Poll();
  }
  void Poll() {
    context_.restart();
    context_.poll();
  }

  std::shared_ptr<Admission> admission_ = std::make_shared<Admission>(kPages);
  asio::io_context context_;
};

TEST_F(AdmissionTest, ASmallCallHasAllThatItNeeds) {
  Call call;
  Admit(&call, 1, 100);
  ASSERT_TRUE(call.admitted());
  EXPECT_TRUE(call.allotment->whole());
  EXPECT_EQ(admission_->free_pages(), kPages - 100);
  for (int i = 0; i < 4; ++i) Take(&call, 25);
  EXPECT_EQ(call.shares.size(), 4u);
  call.shares.clear();
  EXPECT_EQ(admission_->free_pages(), kPages) << "what has been used once is not needed again";
  End(&call);
  EXPECT_EQ(admission_->free_pages(), kPages);
}

TEST_F(AdmissionTest, ALargeCallWorksInParts) {
  Call call;
  Admit(&call, 1, 100 * kPages);
  ASSERT_TRUE(call.admitted());
  EXPECT_FALSE(call.allotment->whole());
  EXPECT_EQ(admission_->free_pages(), kPages - kPart);
  Take(&call, kPart);
  Take(&call, kPart);
  EXPECT_EQ(call.shares.size(), 1u) << "the second waits for the first";
  call.shares.clear();
  Poll();
  EXPECT_EQ(call.shares.size(), 1u);
  EXPECT_EQ(admission_->free_pages(), kPages - kPart) << "it keeps what it needs again";
  End(&call);
  EXPECT_EQ(admission_->free_pages(), kPages);
}

TEST_F(AdmissionTest, WhatIsLentOutlivesTheCall) {
  Call call;
  Admit(&call, 1, 100);
  Take(&call, 60);
  call.allotment.reset();
  EXPECT_EQ(admission_->free_pages(), kPages - 60);
  call.shares.clear();
  EXPECT_EQ(admission_->free_pages(), kPages);
}

TEST_F(AdmissionTest, NothingIsNeededForNothing) {
  std::vector<Call> others(8);
  for (size_t i = 0; i < others.size(); ++i) Admit(&others[i], i, kPart, i);
  EXPECT_EQ(admission_->free_pages(), 0u);
  Call call;
  Admit(&call, 9, 0);
  ASSERT_TRUE(call.admitted());
  EXPECT_TRUE(call.allotment->whole());
}

TEST_F(AdmissionTest, ThoseWhoWaitAreServedInOrder) {
  std::vector<Call> held(8);
  for (size_t i = 0; i < held.size(); ++i) Admit(&held[i], 10 + i, kPart, i);
  Call big, small;
  Admit(&big, 1, kPart, 8);
  Admit(&small, 2, 1, 8);
  EXPECT_FALSE(big.admitted());
  EXPECT_FALSE(small.admitted());
  End(&held[0]);
  EXPECT_TRUE(big.admitted());
  EXPECT_FALSE(small.admitted()) << "nobody overtakes";
  End(&held[1]);
  EXPECT_TRUE(small.admitted());
  EXPECT_EQ(admission_->waiting(), 0u);
}

TEST_F(AdmissionTest, ClientsTakeTurns) {
  std::vector<Call> held(8), many(20);
  for (size_t i = 0; i < held.size(); ++i) Admit(&held[i], 10 + i, kPart, i);
  for (Call& call : many) Admit(&call, 1, kPart, 8);
  Call one;
  Admit(&one, 2, kPart, 8);
  End(&held[0]);
  End(&held[1]);
  EXPECT_TRUE(many[0].admitted());
  EXPECT_TRUE(one.admitted()) << "before the other client's second call";
}

TEST_F(AdmissionTest, AClientThatKeepsItsPagesLeavesSomeToTheOthers) {
  std::vector<Call> stuck(20);
  for (Call& call : stuck) Admit(&call, 1, kPart);
  EXPECT_GE(admission_->free_pages(), kPart);
  EXPECT_TRUE(stuck[4].admitted()) << "but it may have most of the pool";
  for (int i = 0; i < 100; ++i) {
    Call other;
    Admit(&other, 2, kPart);
    ASSERT_TRUE(other.admitted());
    End(&other);
  }
}

TEST_F(AdmissionTest, AnOstThatHangsLeavesSomeToTheOthers) {
  std::vector<Call> stuck(20);
  for (size_t i = 0; i < stuck.size(); ++i) Admit(&stuck[i], i, kPart, 7);
  EXPECT_GE(admission_->free_pages(), kPart);
  for (SessionId client = 0; client < 20; ++client) {
    Call other;
    Admit(&other, client, kPart, 8);
    ASSERT_TRUE(other.admitted()) << "the client's calls to the other OST";
    End(&other);
  }
}

// Any calls of any sizes come to their end, and all pages are there again.
TEST_F(AdmissionTest, EveryCallEnds) {
  SeededRandom random(5);
  struct Shared {
    SeededRandom* random;
    std::shared_ptr<Admission> admission;
    asio::io_context* context;
    int ended = 0;
  } shared{&random, admission_, &context_};
  constexpr int kCalls = 500;
  for (int i = 0; i < kCalls; ++i) {
    Spawn(context_.get_executor(), [](Shared* shared) -> Task<void> {
      const uint64_t needs = 1 + shared->random->Below(shared->random->Below(2) == 0 ? 16 : 20 * kPart);
      const SessionId client = shared->random->Below(5);
      const auto ost = static_cast<uint32_t>(shared->random->Below(3));
      Allotment allotment = co_await shared->admission->Admit(client, ost, needs);
      for (uint64_t left = needs; left > 0;) {
        const uint64_t pages = std::min(left, 1 + shared->random->Below(kPart));
        Allotment::Share share = co_await allotment.Take(pages);
        left -= pages;
        OneShot<Unit> later;
        asio::post(*shared->context, [later] { later.Set({}); });
        co_await later.Wait();
      }
      ++shared->ended;
    }(&shared));
  }
  Poll();
  EXPECT_EQ(shared.ended, kCalls);
  EXPECT_EQ(admission_->free_pages(), kPages);
  EXPECT_EQ(admission_->waiting(), 0u);
}

}  // namespace
}  // namespace nacre::ost
