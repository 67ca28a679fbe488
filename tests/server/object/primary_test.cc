// Which MDS an OSS obeys when there are several: that of the highest epoch it has heard of.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>

#include "server/object/format.h"
#include "server/object/sessions.h"
#include "tests/server/object/fake_mgs.h"

namespace nacre {
namespace {

using testing::HasSubstr;

constexpr ObjectId kCut{9, 0};
constexpr OstIndex kHere = 0, kBeside = 5;

class PrimaryTest : public testing::Test {
 protected:
  // Cuts an object as the MDS of this epoch, and returns what that is told.
  Status Cut(uint64_t epoch, OstIndex ost = kHere) {
    RetryPolicy policy;
    policy.hard = false;
    policy.soft_timeout = 30ms;
    policy.pause = 5ms;
    ObjectStub stub(*fixture.transport->Connect("inproc:oss"), RealClock(), 0, first_sequence += 100, policy,
                    epoch);
    proto::ObjectRequest request;
    request.set_ost(ost);
    *request.mutable_truncate()->mutable_object() = ToProto(kCut);
    Status status = fixture.Call(&stub, std::move(request)).status();
    return absl::IsNotFound(status) ? OkStatus() : status;  // there is nothing to cut
  }

  uint64_t first_sequence = 1;
  ServerFixture fixture;
};

TEST_F(PrimaryTest, AnMdsOfThePastIsRefusedInWordsAndThatOfNowIsNot) {
  EXPECT_TRUE(Cut(0).ok());
  EXPECT_TRUE(Cut(4).ok());
  EXPECT_TRUE(Cut(4).ok());
  EXPECT_TRUE(Cut(6).ok());
  Status refused = Cut(4);
  EXPECT_EQ(ToErrno(refused), EIO) << "as if the server were away, until patience ends";
  EXPECT_THAT(std::string(refused.message()), HasSubstr("the MDS of epoch 4 is the primary no more"));
  EXPECT_FALSE(Cut(5, kBeside).ok()) << "what one OST has heard holds for all";
  EXPECT_TRUE(Cut(6, kBeside).ok());
  EXPECT_TRUE(Cut(0).ok()) << "there is only one MDS again";
}

TEST_F(PrimaryTest, WhatWasHeardLastsAndIsOnStableStorage) {
  EXPECT_TRUE(Cut(6, kBeside).ok());
  for (MemKv& kv : fixture.kv) kv.LosePower(fixture.random);
  ASSERT_TRUE(fixture.Restart().ok());
  EXPECT_FALSE(Cut(5).ok());
  EXPECT_TRUE(Cut(6).ok());
  // An OST that could not store it hears of it from the others.
  KvBatch batch;
  batch.Erase("M");
  ASSERT_TRUE(fixture.Run(fixture.kv[0].Commit(std::move(batch))).ok());
  ASSERT_TRUE(fixture.Restart().ok());
  EXPECT_FALSE(Cut(5, kHere).ok());
  EXPECT_TRUE(Cut(6, kHere).ok());
  EXPECT_TRUE(fixture.kv[0].Get("M").ok());
}

TEST_F(PrimaryTest, ClientsHaveNoEpoch) {
  EXPECT_TRUE(Cut(6).ok());
  auto client = fixture.Client(7);
  EXPECT_TRUE(fixture.Write(client.get(), kHere, ObjectId{10, 0}, 0, "abc").ok());
}

// A change of the old primary's that is under way when the new one comes is not committed any more.
TEST_F(PrimaryTest, WhatWasAdmittedBeforeIsNotCommittedBehind) {
  MemKv kv;
  MemBlockStore disk{64};
  ost::Space space{&disk, "memory"};
  ost::ChunkCache chunks{&kv, ost::ChunkCache::kLeast};
  ost::Journal journal{&kv, &disk, &space, &chunks};
  ost::Sessions sessions{&kv, &journal, &space, &RealClock(), nullptr};
  ASSERT_TRUE(sessions.Load().ok());
  ASSERT_TRUE(fixture.Run(sessions.Obey(4)).ok());
  ost::Sessions::Admission late = fixture.Run(sessions.Admit(0, 1, 1, 4));
  ost::Sessions::Admission committing = fixture.Run(sessions.Admit(0, 2, 1, 4));
  ASSERT_TRUE(late.status.ok() && committing.status.ok());
  ASSERT_TRUE(committing.ticket.BeginCommit().ok());
  bool obeyed = false;
  Spawn(fixture.context.get_executor(), sessions.Obey(6), [&](Status status) { obeyed = status.ok(); });
  fixture.context.restart();
  fixture.context.poll();
  EXPECT_FALSE(obeyed) << "what has begun comes first";
  EXPECT_EQ(ToErrno(late.ticket.BeginCommit()), ESTALE);
  EXPECT_EQ(ToErrno(fixture.Run(sessions.Admit(0, 3, 1, 4)).status), ESTALE);
  committing.ticket.EndCommit();
  fixture.context.restart();
  fixture.context.poll();
  EXPECT_TRUE(obeyed);
  EXPECT_TRUE(sessions.Obeys(6));
  EXPECT_EQ(ToErrno(fixture.Run(sessions.Obey(5))), ESTALE);
}

TEST(PrimaryAnswers, ThoseOfThePastAreNone) {
  auto mgs = std::make_shared<FakeMgs>();
  mgs->mdt_epoch = 5;
  ServerFixture f(OftenBeating(), mgs);
  RunUntil(&f, [&] { return mgs->heartbeats.size() >= 2; });
  EXPECT_EQ(mgs->registrations.size(), 1u);
  // It does not know this server, but nobody asks it.
  mgs->mdt_epoch = 4;
  mgs->forget = true;
  const size_t before = mgs->heartbeats.size();
  RunUntil(&f, [&] { return mgs->heartbeats.size() >= before + 4; });
  EXPECT_FALSE(mgs->forget) << "it was asked";
  EXPECT_EQ(mgs->registrations.size(), 1u);
  mgs->mdt_epoch = 6;
  mgs->forget = true;
  RunUntil(&f, [&] { return mgs->registrations.size() >= 2; });
  for (MemKv& kv : f.kv) EXPECT_EQ(*ost::ParseMdtEpoch(*kv.Get("M")), 6u);
}

}  // namespace
}  // namespace nacre
