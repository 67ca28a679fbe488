#include "server/object/sessions.h"

#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <cerrno>
#include <set>

#include "rpc/fence.h"
#include "server/kv/mem_kv.h"
#include "server/object/mem_block_store.h"
#include "tests/common/await.h"

namespace nacre::ost {
namespace {

class SessionsTest : public testing::Test {
 protected:
  SessionsTest() { lease.Renew(Duration{0}, Duration{0}); }  // without limit

  Sessions::Admission Admit(SessionId session, uint64_t sequence, uint64_t low_water) {
    return Await(sessions.Admit(session, sequence, low_water));
  }
  // Carries out a mutation.
  void Do(SessionId session, uint64_t sequence, uint64_t low_water) {
    Sessions::Admission admission = Admit(session, sequence, low_water);
    ASSERT_TRUE(admission.status.ok()) << admission.status;
    ASSERT_FALSE(admission.answer.has_value());
    admission.ticket.Finish(absl::StrCat("answer ", sequence));
  }

  // As the last change of the request, or the end of one that changes nothing, does it.
  void Record(Sessions::Admission* admission, int64_t delta = 0) {
    ASSERT_TRUE(admission->status.ok()) << admission->status;
    admission->ticket.RecordAnswer();
    admission->ticket.answering()->answer.record.delta = delta;
    ASSERT_TRUE(Await(journal.Record(&admission->ticket)).ok());
    EXPECT_TRUE(admission->ticket.answering()->stored);
  }
  // The process ends; another one has recovered.
  void Restart() { ASSERT_TRUE(Await(Journal(&kv, &disk, &space, &chunks).Recover(false)).ok()); }
  // Answers that are kept once the journal has been synced.
  size_t Stored() {
    EXPECT_TRUE(Await(journal.Sync()).ok());
    return kv.Scan("A", PrefixEnd("A"), 1000)->size();
  }

  MemKv kv;
  MemBlockStore disk{4096};
  Space space{&disk, "memory"};
  ChunkCache chunks{&kv, ChunkCache::kLeast};
  Journal journal{&kv, &disk, &space, &chunks};
  ServiceLease lease;
  Sessions sessions{&kv, &journal, &space, &RealClock(), &lease};
};

TEST_F(SessionsTest, ARepeatIsAnsweredAndALateCopyIsRefused) {
  Do(5, 1, 1);
  EXPECT_EQ(Admit(5, 1, 1).answer, "answer 1");
  Do(5, 2, 2);
  EXPECT_EQ(ToErrno(Admit(5, 1, 1).status), ESTALE);
}

// A low water says what has been answered, so it never lies above the request that brings it: believed, it
// would shut out everything that the session sends afterwards.
TEST_F(SessionsTest, ALowWaterAboveItsOwnRequestIsRefused) {
  EXPECT_EQ(ToErrno(Admit(5, 1, ~uint64_t{0}).status), EPROTO);
  EXPECT_TRUE(Admit(5, 0, ~uint64_t{0}).status.ok());  // not a mutation: it has none
  Do(5, 1, 1);
}

// The repeat would undo what others have written since.
TEST_F(SessionsTest, AnAnswerSurvivesARestart) {
  Sessions::Admission admission = Admit(5, 3, 2);
  Record(&admission, -4);
  Restart();
  Sessions next(&kv, &journal, &space, &RealClock(), &lease);
  ASSERT_TRUE(next.Load().ok());
  EXPECT_EQ(Await(next.Admit(5, 3, 2)).recorded, -4);
  EXPECT_EQ(ToErrno(Await(next.Admit(5, 1, 1)).status), ESTALE);
  EXPECT_TRUE(Await(next.Admit(5, 4, 4)).status.ok());
  EXPECT_EQ(ToErrno(Await(next.Admit(5, 3, 2)).status), ESTALE);  // acknowledged by then
}

// As many as were under way at a time, not as many as there were.
TEST_F(SessionsTest, AFewRecordsForEachSession) {
  for (uint64_t sequence = 1; sequence <= 100; ++sequence) {
    Sessions::Admission admission = Admit(5, sequence, sequence < 3 ? 1 : sequence - 2);
    Record(&admission);
    admission.ticket.Finish("done");
  }
  EXPECT_LE(Stored(), 4u);
  std::vector<SessionId> fenced(1, 5);
  ASSERT_TRUE(Await(sessions.Fence(std::move(fenced))).ok());
  EXPECT_EQ(Stored(), 0u);
}

TEST_F(SessionsTest, NobodyIsLeftOutWhenSlotsAreFoundAgain) {
  std::vector<Sessions::Admission> under_way;
  for (uint64_t sequence = 1; sequence <= 5; ++sequence) under_way.push_back(Admit(5, sequence, 1));
  Record(&under_way[1]);
  Record(&under_way[3]);
  Restart();
  Sessions next(&kv, &journal, &space, &RealClock(), &lease);
  ASSERT_TRUE(next.Load().ok());
  std::vector<Sessions::Admission> repeated;
  for (uint64_t sequence = 1; sequence <= 6; ++sequence)
    repeated.push_back(Await(next.Admit(5, sequence, 1)));
  std::set<uint32_t> slots;
  for (size_t i : {0, 2, 4, 5}) {
    ASSERT_FALSE(repeated[i].recorded.has_value()) << i;
    repeated[i].ticket.RecordAnswer();
    slots.insert(repeated[i].ticket.answering()->answer.slot.slot);
  }
  EXPECT_TRUE(repeated[1].recorded.has_value() && repeated[3].recorded.has_value());
  EXPECT_EQ(slots, (std::set<uint32_t>{0, 2, 4, 5})) << "beside those of the answers that are there";
}

// A client that never acknowledges anything must not fill the server.
TEST_F(SessionsTest, TheAnswersOfASessionAreBounded) {
  for (uint64_t sequence = 1; sequence <= kMaxAnswerSlots; ++sequence) Do(5, sequence, 1);
  Sessions::Admission more = Admit(5, kMaxAnswerSlots + 1, 1);
  EXPECT_TRUE(IsRetryable(more.status)) << more.status;
  EXPECT_EQ(Admit(5, 7, 1).answer, "answer 7");
  Do(5, kMaxAnswerSlots + 1, 2);
  Do(6, 1, 1);
}

// After an MDT was restored: of its sessions since the backup nobody has a list.
TEST_F(SessionsTest, AllBelowANumberAreRefusedAlsoAfterARestart) {
  Do(0, 1, 1);
  Do(5, 1, 1);
  Do(90, 1, 1);
  std::vector<SessionId> fence(1, AllBelow(90));
  ASSERT_TRUE(Await(sessions.Fence(fence)).ok());
  EXPECT_EQ(ToErrno(Admit(5, 2, 2).status), ESTALE);
  EXPECT_EQ(ToErrno(Admit(89, 1, 1).status), ESTALE) << "never heard of";
  EXPECT_EQ(sessions.size(), 2u) << "the answers of those that end are forgotten";
  Do(90, 2, 2);
  Do(0, 2, 2);
  Restart();
  Sessions next(&kv, &journal, &space, &RealClock(), &lease);
  ASSERT_TRUE(next.Load().ok());
  EXPECT_EQ(ToErrno(Await(next.Admit(89, 1, 1)).status), ESTALE);
  EXPECT_TRUE(Await(next.Admit(90, 3, 3)).status.ok());
  EXPECT_TRUE(Await(next.Admit(0, 3, 3)).status.ok());
  EXPECT_TRUE(Await(next.Fence(fence)).ok()) << "told once more";
}

// The MDT that was restored then would give out numbers that are refused here.
TEST_F(SessionsTest, AFenceOfAllBelowDoesNotGoBack) {
  std::vector<SessionId> fence(1, AllBelow(90)), lower(1, AllBelow(89)), higher(1, AllBelow(91));
  ASSERT_TRUE(Await(sessions.Fence(fence)).ok());
  EXPECT_EQ(ToErrno(Await(sessions.Fence(lower))), EINVAL);
  EXPECT_TRUE(Await(sessions.Fence(higher)).ok());
  EXPECT_EQ(ToErrno(Admit(90, 1, 1).status), ESTALE);
}

TEST_F(SessionsTest, AFenceOfAllBelowWaitsForTheirCommits) {
  Sessions::Admission admission = Admit(5, 1, 1);
  ASSERT_TRUE(admission.ticket.BeginCommit().ok());
  asio::io_context context;
  bool fenced = false;
  Spawn(context.get_executor(), [](Sessions* sessions, bool* fenced) -> Task<void> {
    std::vector<SessionId> all(1, AllBelow(90));
    EXPECT_TRUE((co_await sessions->Fence(std::move(all))).ok());
    *fenced = true;
  }(&sessions, &fenced));
  context.poll();
  EXPECT_FALSE(fenced);
  EXPECT_FALSE(admission.ticket.BeginCommit().ok());
  admission.ticket.EndCommit();
  context.restart();
  context.poll();
  EXPECT_TRUE(fenced);
}

TEST_F(SessionsTest, SilentSessionsAreForgottenAndReadersAreNotKept) {
  (void)Admit(8, 0, 0);
  EXPECT_EQ(sessions.size(), 0u);
  {
    Sessions::Admission admission = Admit(5, 1, 1);
    Record(&admission);
    admission.ticket.Finish("done");
  }
  Do(0, 1, 1);  // the MDS, which is never forgotten
  sessions.ForgetSilent(std::chrono::hours(1));
  EXPECT_EQ(sessions.size(), 2u);
  sessions.ForgetSilent(Duration(0));
  EXPECT_EQ(sessions.size(), 1u);
  EXPECT_EQ(Stored(), 0u);
}

}  // namespace
}  // namespace nacre::ost
