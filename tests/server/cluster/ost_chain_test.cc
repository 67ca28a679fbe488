// The judge's rules: who is in the chain of an OST, after whatever its members do.
#include "tests/server/cluster/ost_chain_fixture.h"

namespace nacre::cluster {
namespace {

TEST_F(OstChainTest, TheFirstMemberIsTheChainAndFurtherOnesJoinIt) {
  ASSERT_TRUE(Register(Member("A", 1)).ok());
  EXPECT_EQ(Text(), "A>");
  EXPECT_FALSE(chain->up());
  TellAll();
  chain->Answered("A", now);
  EXPECT_TRUE(chain->up());
  Enter(Member("B", 1));
  EXPECT_EQ(Text(), "A> B+");
  EXPECT_EQ(chain->Describe().joining(0).uuid(), "B");
  const uint32_t joining = chain->record().epoch;
  ASSERT_TRUE(Report("A", "", "B").ok());
  EXPECT_EQ(Text(), "A> B>");
  EXPECT_EQ(chain->record().epoch, joining + 1);
  EXPECT_TRUE(Report("A", "", "B", joining).ok());  // the answer was lost
  EXPECT_EQ(chain->record().epoch, joining + 1);
  EXPECT_TRUE(chain->up());
}

TEST_F(OstChainTest, RefusesWhatCannotBe) {
  EXPECT_EQ(Refusal(Member("A", 1, 4)), EINVAL);
  MakePair();
  EXPECT_EQ(Refusal(Member("C", 1)), EEXIST);
  EXPECT_EQ(Refusal(Member("A", 1, 1)), EINVAL);
  Arrival beside = Member("C", 1, 3);
  beside.address = "inproc:A";
  EXPECT_EQ(Refusal(beside), EINVAL);
  EXPECT_EQ(Text(), "A> B>");
  Enter(Member("C", 1, 3));  // there are to be three from now on
  EXPECT_EQ(Text(), "A> B> C+");
}

TEST_F(OstChainTest, ARestartOfOneOfTwoLeavesTheChain) {
  MakePair();
  ASSERT_TRUE(Register(Member("A", 2)).ok());
  EXPECT_EQ(Text(), "B> A+");
  EXPECT_FALSE(chain->up());  // B does not know that it is the head
  TellAll();
  EXPECT_TRUE(chain->up());
  EXPECT_EQ(chain->Describe().members(0).uuid(), "B");
  EXPECT_EQ(chain->Describe().joining(0).instance(), 2u);
  ASSERT_TRUE(Report("B", "", "A").ok());
  Enter(Member("A", 3));
  EXPECT_EQ(Text(), "B> A+");
  EXPECT_TRUE(chain->up());
}

// The witness of its death says that nothing of it serves anybody (HeartbeatRequest.ended): nobody waits for
// its lease.
TEST_F(OstChainTest, AHeadWhoseProcessHasEndedIsReplacedAtTheNextHeartbeatOfAnother) {
  MakePair(7, 8);
  now += 100ms;
  EXPECT_TRUE(chain->Ended(7, now));
  EXPECT_FALSE(chain->Ended(7, now + 1s)) << "told twice";
  Decide();
  EXPECT_FALSE(chain->up());
  EXPECT_EQ(Text(), "A> B>") << "B may have died with it";
  now += 100ms;
  ASSERT_TRUE(Beat(Member("B", 8)));
  Decide();
  EXPECT_EQ(Text(), "B> A-");
  TellAll();
  EXPECT_TRUE(chain->up());
}

TEST_F(OstChainTest, WhatAProcessHadSentBeforeItEndedDoesNotBringItBack) {
  MakePair(7, 8);
  ASSERT_TRUE(chain->Ended(7, now));
  EXPECT_FALSE(Beat(Member("A", 7)));
  ASSERT_TRUE(Register(Member("A", 7)).ok());
  EXPECT_EQ(chain->EntryOf("A"), Entry::kFailed);
  EXPECT_FALSE(Beat(Member("A", 7)));
  EXPECT_FALSE(chain->up());
  EXPECT_EQ(chain->ServesUntil(), now + 3300ms) << "B's lease";
}

TEST_F(OstChainTest, TheEndOfAnEarlierProcessSaysNothingOfThisOne) {
  MakePair(7, 8);
  Enter(Member("B", 9));
  ASSERT_TRUE(Report("A", "", "B").ok());
  EXPECT_FALSE(chain->Ended(8, now));
  EXPECT_FALSE(chain->Ended(0, now));
  EXPECT_TRUE(Beat(Member("B", 9)));
  EXPECT_EQ(Text(), "A> B>");
  EXPECT_TRUE(chain->Ended(9, now));
  Pass(600ms, {Member("A", 7)});
  EXPECT_EQ(Text(), "A> B-");
}

TEST_F(OstChainTest, OfTwoWhoseProcessesHaveEndedTheFirstThatComesBackGoesOnAtOnce) {
  MakePair(7, 8);
  ASSERT_TRUE(chain->Ended(7, now));
  ASSERT_TRUE(chain->Ended(8, now));
  Pass(10s, {});
  EXPECT_EQ(Text(), "A> B>");
  Enter(Member("B", 9));
  EXPECT_EQ(Text(), "B> A-");
  EXPECT_TRUE(chain->up());
}

// The MGS that is told is another one than that which knew the process.
TEST_F(OstChainTest, AnMgsThatHasJustBegunBelievesTheEndOfAProcessThatItHasOnlyInItsRecords) {
  MakePair(7, 8);
  RestartMgs();
  Enter(Member("B", 8));
  EXPECT_TRUE(chain->Ended(7, now));
  EXPECT_EQ(Text(), "A> B>");
  now += 100ms;
  EXPECT_TRUE(Beat(Member("B", 8)));
  Decide();
  EXPECT_EQ(Text(), "B> A-");
}

TEST_F(OstChainTest, AJoinerWhoseProcessHasEndedIsAwayAtOnce) {
  Enter(Member("A", 7));
  Enter(Member("B", 8));
  EXPECT_EQ(Text(), "A> B+");
  ASSERT_TRUE(chain->Ended(8, now));
  Decide();
  EXPECT_EQ(Text(), "A> B-");
}

// The power fails: both come back as other processes. One must go on, but not while the other may still serve
// or come back unchanged.
TEST_F(OstChainTest, OfTwoThatRestartOneGoesOn) {
  MakePair();
  Pass(2600ms, {});
  Enter(Member("A", 2));
  EXPECT_EQ(Text(), "A> B>");
  EXPECT_FALSE(chain->up());
  EXPECT_EQ(chain->EntryOf("A"), Entry::kDone);
  EXPECT_TRUE(Beat(Member("A", 2)));
  Enter(Member("B", 2));
  EXPECT_EQ(Text(), "A> B+");
  EXPECT_TRUE(chain->up());
}

TEST_F(OstChainTest, ARestartedOneGoesOnAloneWhenTheOthersLeaseIsOver) {
  MakePair();
  Pass(2600ms, {});
  Enter(Member("B", 2));
  Pass(600ms, {Member("B", 2)});
  EXPECT_EQ(Text(), "A> B>");
  Pass(200ms, {Member("B", 2)});
  EXPECT_EQ(Text(), "B> A-");
  EXPECT_TRUE(chain->up());
  Enter(Member("A", 1));  // not restarted, but too late
  EXPECT_EQ(Text(), "B> A+");
}

TEST_F(OstChainTest, ARestartedOneLeavesForOneThatComesBackUnchanged) {
  MakePair();
  Pass(2600ms, {});
  Enter(Member("A", 2));
  Enter(Member("B", 1));
  EXPECT_EQ(Text(), "B> A+");
  EXPECT_TRUE(chain->up());
}

TEST_F(OstChainTest, TheOnlyOneInSyncGoesOnAfterARestart) {
  Enter(Member("A", 1));
  Enter(Member("B", 1));
  const uint32_t before = chain->record().epoch;
  Enter(Member("A", 2));
  EXPECT_EQ(Text(), "A> B+");
  EXPECT_GT(chain->record().epoch, before);
  EXPECT_TRUE(chain->up());
}

TEST_F(OstChainTest, ASilentHeadIsReplacedWhenItsLeaseIsOver) {
  MakePair();
  Pass(2600ms, {Member("B", 1)});
  EXPECT_FALSE(chain->up());
  EXPECT_FALSE(Beat(Member("A", 1)));  // which would renew its lease
  Pass(600ms, {Member("B", 1)});
  EXPECT_EQ(Text(), "A> B>");
  Pass(100ms, {Member("B", 1)});
  EXPECT_EQ(Text(), "B> A-");
  EXPECT_TRUE(chain->up());
  EXPECT_EQ(ToErrno(Report("A", "B", "")), ESTALE);
  EXPECT_EQ(ToErrno(Report("A", "", "")), ESTALE);
  EXPECT_EQ(Text(), "B> A-");
}

// It believes that it is the head, and its heartbeats would let it serve.
TEST_F(OstChainTest, AHeadThatComesBackIsNotAnsweredBeforeItKnowsItsPlace) {
  MakePair();
  Pass(4s, {Member("B", 1)});
  ASSERT_TRUE(Register(Member("A", 1)).ok());
  EXPECT_EQ(Text(), "B> A+");
  EXPECT_EQ(chain->EntryOf("A"), Entry::kPending);
  EXPECT_FALSE(Beat(Member("A", 1)));
  TellAll();
  EXPECT_EQ(chain->EntryOf("A"), Entry::kDone);
  EXPECT_TRUE(Beat(Member("A", 1)));
}

TEST_F(OstChainTest, AHeadThatComesBackInTimeGoesOn) {
  MakePair();
  const uint32_t before = chain->record().epoch;
  Pass(2600ms, {Member("B", 1)});
  Enter(Member("A", 1));
  EXPECT_TRUE(chain->up());
  EXPECT_EQ(chain->record().epoch, before);
}

// It reaches the MGS, which cannot reach it: its registrations must not keep its place for ever.
TEST_F(OstChainTest, AHeadThatCannotBeToldIsReplacedWhateverItSends) {
  MakePair();
  for (int i = 0; i < 4; ++i) {
    chain->Down("A");
    ASSERT_TRUE(Register(Member("A", 1)).ok());
    now += 900ms;
    EXPECT_TRUE(Beat(Member("B", 1)));
    chain->Down("A");
    Decide();
    EXPECT_EQ(Text(), i < 3 ? "A> B>" : "B> A-");
  }
}

TEST_F(OstChainTest, WhoIsNotAnsweredForLongIsDown) {
  MakePair();
  chain->Down("A");
  ASSERT_TRUE(Register(Member("A", 1)).ok());
  now += 9900ms;
  EXPECT_EQ(chain->EntryOf("A"), Entry::kPending);
  chain->CheckSilent(now);
  EXPECT_EQ(chain->EntryOf("A"), Entry::kPending);
  now += 100ms;
  chain->CheckSilent(now);
  EXPECT_EQ(chain->EntryOf("A"), Entry::kFailed);
}

TEST_F(OstChainTest, ALostFollowerIsOutAtOnceAndJoinsWhenItRegistersAgain) {
  MakePair();
  const uint32_t before = chain->record().epoch;
  ASSERT_TRUE(Report("A", "B", "").ok());
  EXPECT_EQ(Text(), "A> B-");
  EXPECT_TRUE(chain->up());
  EXPECT_FALSE(Beat(Member("B", 1)));
  EXPECT_TRUE(Report("A", "B", "", before).ok());  // the answer was lost
  EXPECT_EQ(chain->record().epoch, before + 1);
  Enter(Member("B", 1));
  EXPECT_EQ(Text(), "A> B+");
  EXPECT_TRUE(Report("A", "B", "", before).ok());  // of that epoch
  EXPECT_EQ(Text(), "A> B+");
  ASSERT_TRUE(Report("A", "B", "").ok());  // while it joins
  EXPECT_EQ(Text(), "A> B-");
}

TEST_F(OstChainTest, WhatAHeadHadSentBeforeItsRestartIsNotBelieved) {
  MakePair();
  Pass(2600ms, {});
  Enter(Member("A", 2));
  EXPECT_EQ(ToErrno(Report("A", "B", "")), ESTALE);
  EXPECT_EQ(Text(), "A> B>");
}

TEST_F(OstChainTest, AHeadGivesUpItsPlaceIfAnotherOneIsThere) {
  MakePair();
  const uint32_t before = chain->record().epoch;
  ASSERT_TRUE(Report("A", "A", "").ok());
  EXPECT_EQ(Text(), "B> A-");
  EXPECT_TRUE(Report("A", "A", "", before).ok());
  EXPECT_EQ(ToErrno(Report("B", "B", "")), EBUSY);
  EXPECT_EQ(Text(), "B> A-");
}

// Seed 1213000596 of OSTs with three members: a head that had not heard of the next epoch lost its place for
// that, and what it had handed on was never done there.
TEST_F(OstChainTest, AHeadThatKnowsAnEarlierEpochStaysTheHead) {
  MakePair();
  const uint32_t before = chain->record().epoch;
  Enter(Member("C", 1, 3));
  EXPECT_EQ(Text(), "A> B> C+");
  EXPECT_TRUE(Report("A", "B", "", before).ok());
  EXPECT_EQ(Text(), "A> B> C+");
  ASSERT_TRUE(Report("A", "B", "").ok());
  EXPECT_EQ(Text(), "A> C+ B-");
  ASSERT_TRUE(Report("A", "", "C").ok());
  ASSERT_TRUE(Report("A", "A", "", before).ok()) << "its own place it gives up in any epoch";
  EXPECT_EQ(Text(), "C> A- B-");
}

TEST_F(OstChainTest, OnlyWhoJoinsIsTakenIntoTheChain) {
  Enter(Member("A", 1));
  EXPECT_EQ(ToErrno(Report("A", "", "B")), ESTALE);
  Enter(Member("B", 1));
  const uint32_t before = chain->record().epoch;
  Enter(Member("B", 2));  // what it had been given may be gone
  EXPECT_EQ(chain->Describe().joining(0).instance(), 2u);
  EXPECT_TRUE(Report("A", "", "B", before).ok());
  EXPECT_EQ(Text(), "A> B+");
}

TEST_F(OstChainTest, AJoinerWaitsWhileNoMemberInSyncIsUp) {
  Enter(Member("A", 1));
  Enter(Member("B", 1));
  Pass(10s, {Member("B", 1)});
  EXPECT_EQ(chain->record().head().uuid, "A");
  EXPECT_TRUE(chain->record().head().in_sync());
  EXPECT_FALSE(chain->up());
  EXPECT_EQ(ToErrno(Report("B", "A", "")), ESTALE);
  Enter(Member("B", 2));
  EXPECT_EQ(chain->record().head().uuid, "A");
  EXPECT_EQ(chain->EntryOf("B"), Entry::kDone);
  Enter(Member("A", 1));
  EXPECT_EQ(Text(), "A> B+");
  EXPECT_TRUE(chain->up());
}

TEST_F(OstChainTest, AnEmptyStoreTakesThePlaceOfOneThatIsAway) {
  MakePair();
  Pass(2600ms, {Member("A", 1)});
  EXPECT_EQ(Refusal(Member("C", 1)), EAGAIN);  // B may come back yet
  Pass(1s, {Member("A", 1)});
  EXPECT_EQ(Text(), "A> B-");
  Arrival full = Member("C", 1);
  full.info.set_objects(3);
  EXPECT_EQ(Refusal(full), EEXIST);
  Enter(Member("C", 1));
  EXPECT_EQ(Text(), "A> C+");
  EXPECT_EQ(Refusal(Member("B", 1)), EEXIST);
}

TEST_F(OstChainTest, ANewDiskInTheSameServerTakesThePlaceOfTheOldOne) {
  Enter(Member("A", 1, 3));
  Enter(Member("B", 1, 3));
  Pass(4s, {Member("A", 1, 3)});
  Arrival disk = Member("C", 2, 3);
  disk.address = "inproc:B";
  Enter(disk);
  EXPECT_EQ(Text(), "A> C+");
}

TEST_F(OstChainTest, AfterARestartOfTheMgsTheChainGoesOn) {
  MakePair();
  const uint32_t before = chain->record().epoch;
  RestartMgs();
  EXPECT_FALSE(chain->up());
  Enter(Member("A", 1));
  Pass(1s, {Member("A", 1)});
  EXPECT_TRUE(chain->up());
  Enter(Member("B", 1));
  Pass(5s, {Member("A", 1), Member("B", 1)});
  EXPECT_EQ(Text(), "A> B>");
  EXPECT_EQ(chain->record().epoch, before);
}

TEST_F(OstChainTest, AfterARestartOfTheMgsASilentHeadIsReplacedWhenItsLeaseIsOver) {
  MakePair();
  RestartMgs();
  Enter(Member("B", 1));
  Pass(3200ms, {Member("B", 1)});
  EXPECT_EQ(Text(), "A> B>");
  Pass(100ms, {Member("B", 1)});
  EXPECT_EQ(Text(), "B> A-");
  EXPECT_TRUE(chain->up());
}

// That it was decided to wait for B is not stored, but that A has been restarted must not be forgotten.
TEST_F(OstChainTest, AfterARestartOfTheMgsAMemberThatWaitedIsStillARestartedOne) {
  MakePair();
  Pass(2600ms, {});
  Enter(Member("A", 2));
  RestartMgs();
  Enter(Member("A", 2));
  EXPECT_FALSE(chain->up());
  Enter(Member("B", 1));
  EXPECT_EQ(Text(), "B> A+");
}

// Seed 892000052 of OSTs with two members: A had registered and lost power before it was answered. B, which
// had lost it as well and came back first, was made to join behind A, and nobody served until A came back.
TEST_F(OstChainTest, AnAnswerDoesNotShowThatSomebodyIsThere) {
  MakePair();
  RestartMgs();
  ASSERT_TRUE(Register(Member("A", 1)).ok());
  now += 4s;
  ASSERT_TRUE(Register(Member("B", 2)).ok());
  TellAll();
  chain->Answered("A", now);
  chain->Answered("B", now);
  Decide();
  EXPECT_EQ(Text(), "A> B>");
  Pass(4s, {Member("B", 2)});
  EXPECT_EQ(Text(), "B> A-");
}

TEST_F(OstChainTest, AHeadThatFailsLosesItsPlaceWhenItsLeaseIsOver) {
  MakePair();
  Pass(1s, {Member("A", 1), Member("B", 1)});
  EXPECT_FALSE(Beat(Failing(Member("A", 1))));
  EXPECT_FALSE(chain->up());
  Enter(Failing(Member("A", 1)));
  EXPECT_EQ(chain->EntryOf("A"), Entry::kPending);
  Pass(3200ms, {Member("B", 1)});
  EXPECT_EQ(Text(), "A> B>");
  Pass(100ms, {Member("B", 1)});
  EXPECT_EQ(Text(), "B> A-");
  EXPECT_EQ(chain->EntryOf("A"), Entry::kDone);
  EXPECT_TRUE(chain->up());
  EXPECT_TRUE(Beat(Failing(Member("A", 1))));
  EXPECT_FALSE(Beat(Member("A", 1)));
  Enter(Member("A", 1));
  EXPECT_EQ(Text(), "B> A+");
}

TEST_F(OstChainTest, TheOnlyHeadThatFailsStaysAndIsDown) {
  Enter(Member("A", 1));
  EXPECT_TRUE(Beat(Failing(Member("A", 1))));
  EXPECT_FALSE(chain->up());
  Pass(5s, {Failing(Member("A", 1))});
  EXPECT_EQ(Text(), "A>");
}

TEST_F(OstChainTest, TheHeadIsToldLast) {
  MakePair();
  ASSERT_TRUE(Register(Member("C", 1, 3)).ok());
  auto behind = chain->BehindToTell();
  ASSERT_EQ(behind.size(), 2u);
  EXPECT_FALSE(chain->HeadToTell().has_value());
  chain->Told(behind[0], chain->record().epoch);
  EXPECT_FALSE(chain->HeadToTell().has_value());
  chain->Told(behind[1], chain->record().epoch - 1);  // an earlier telling
  EXPECT_FALSE(chain->HeadToTell().has_value());
  // A member that does not answer is down, and keeps nobody waiting.
  EXPECT_FALSE(chain->NotTold(behind[1]));
  EXPECT_TRUE(chain->NotTold(behind[1]));
  ASSERT_TRUE(chain->HeadToTell().has_value());
  EXPECT_EQ(chain->HeadToTell()->uuid, "A");
  EXPECT_TRUE(chain->up());  // all the time: it was told before
}

TEST_F(OstChainTest, WhoHasNotHeardIsToldAgain) {
  MakePair();
  EXPECT_TRUE(chain->BehindToTell().empty());
  Arrival behind = Member("B", 1);
  behind.info.set_chain_epoch(1);
  EXPECT_TRUE(chain->Beat(behind, now));
  EXPECT_EQ(chain->BehindToTell().size(), 1u);
}

// Three members: the order is kept, and the smallest disk counts.
TEST_F(OstChainTest, OfThreeTheNextOneFollows) {
  Enter(Member("A", 1, 3));
  Arrival small = Member("B", 1, 3);
  small.info.set_total_bytes(60);
  small.info.set_available_bytes(10);
  Arrival large = Member("C", 1, 3);
  large.info.set_available_bytes(90);
  Enter(small);
  Enter(large);
  ASSERT_TRUE(Report("A", "", "C").ok());
  ASSERT_TRUE(Report("A", "", "B").ok());
  EXPECT_EQ(Text(), "A> C> B>");
  Pass(3400ms, {small, large});
  EXPECT_EQ(Text(), "C> B> A-");
  EXPECT_EQ(chain->Info().total_bytes(), 60u);
  EXPECT_EQ(chain->Info().available_bytes(), 10u);
  EXPECT_EQ(chain->Info().uuid(), "C");
  proto::OstState state;
  chain->Fill(now, &state);
  EXPECT_EQ(state.address(), "inproc:C");
  EXPECT_TRUE(state.up());
  ASSERT_EQ(state.members_size(), 3);
  EXPECT_TRUE(state.members(1).in_sync());
  EXPECT_FALSE(state.members(2).in_sync());
  EXPECT_FALSE(state.members(2).up());
  EXPECT_EQ(state.chain_epoch(), chain->record().epoch);
}

// An MDT that was restored from a backup: its epochs would be refused.
TEST_F(OstChainTest, EpochsGoOnAboveThoseThatMembersKnow) {
  MakePair();
  RestartMgs();
  Arrival a = Member("A", 1);
  a.info.set_chain_epoch(40);
  Enter(a);
  EXPECT_EQ(chain->record().epoch, 41u);
}

TEST_F(OstChainTest, NextLookIsWhenSomethingIsDue) {
  MakePair();
  EXPECT_EQ(chain->NextLook(now), 2500ms);
  now += 2500ms;
  EXPECT_EQ(chain->NextLook(now), 800ms);
}

}  // namespace
}  // namespace nacre::cluster
