#include "server/metadata/lease_table.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "rpc/convert.h"

namespace nacre::mds {
namespace {

const Fid kFile{1, 2, 0}, kOther{1, 3, 0};

proto::Lease Claim(uint64_t id, const Fid& fid, proto::LeaseMode mode) {
  proto::Lease lease;
  lease.set_id(id);
  lease.set_mode(mode);
  *lease.mutable_resource() = ToProto(fid);
  return lease;
}

TEST(LeaseTable, ReadIsSharedAndWriteIsNot) {
  LeaseTable table(100);
  table.Grant(1, kFile, proto::LEASE_READ);
  EXPECT_TRUE(table.Conflicts(kFile, 2, proto::LEASE_READ).empty());
  EXPECT_EQ(table.Conflicts(kFile, 2, proto::LEASE_WRITE).size(), 1u);
  EXPECT_TRUE(table.Conflicts(kFile, 1, proto::LEASE_WRITE).empty()) << "its own is not in the way";
  EXPECT_TRUE(table.Conflicts(kOther, 2, proto::LEASE_WRITE).empty());
  table.Grant(1, kFile, proto::LEASE_WRITE);
  EXPECT_EQ(table.Conflicts(kFile, 2, proto::LEASE_READ).size(), 1u);
  EXPECT_EQ(table.CountBySession()[1].held, 1u) << "changed, not another one";
}

TEST(LeaseTable, WriteIsForWhoIsAlone) {
  LeaseTable table(100);
  const Duration now = std::chrono::seconds(1);
  const auto read = table.TryGrantRead(1, kFile, now);
  ASSERT_TRUE(read);
  EXPECT_FALSE(table.TryGrantWrite(2, kFile, now));
  const auto write = table.TryGrantWrite(1, kFile, now);
  ASSERT_TRUE(write);
  EXPECT_EQ(write->id, read->id) << "the same lease, now for writing";
  EXPECT_FALSE(table.TryGrantRead(2, kFile, now));
  EXPECT_EQ(table.TryGrantRead(1, kFile, now)->mode, proto::LEASE_WRITE) << "no less than it has";
  table.BeginRevoke(write->id);
  EXPECT_FALSE(table.TryGrantWrite(1, kFile, now)) << "until it is given back";
  EXPECT_FALSE(table.TryGrantRead(1, kFile, now));
  table.Release(1, write->id);
  table.GrantNoneUntil(kFile, proto::LEASE_WRITE, now * 2);
  EXPECT_FALSE(table.TryGrantWrite(2, kFile, now));
  EXPECT_TRUE(table.TryGrantRead(2, kFile, now));
  EXPECT_TRUE(table.TryGrantWrite(2, kFile, now * 2));
  EXPECT_EQ(table.WrittenBy(2), std::vector<Fid>{kFile});
  EXPECT_TRUE(table.WrittenBy(1).empty());
}

// A session that has WRITE of a file while its data comes late may want READ of it, for pages of its kernel,
// and gives the two back at different times. They were one: the data came, and the session went on to read
// what others had changed since (seed 886000896).
TEST(LeaseTable, ReadBesideWriteOfALateFileIsAnotherLease) {
  LeaseTable table(100);
  const uint64_t late = table.GrantLate(1, kFile).id;
  const uint64_t pages = table.Grant(1, kFile, proto::LEASE_READ).id;
  EXPECT_NE(pages, late);
  EXPECT_EQ(table.Grant(1, kFile, proto::LEASE_READ).id, pages);
  EXPECT_TRUE(table.HoldsWrite(1, kFile));
  table.Release(1, late);
  EXPECT_FALSE(table.HoldsWrite(1, kFile));
  EXPECT_TRUE(table.HasConflict(kFile, 2, proto::LEASE_WRITE)) << "its pages are still there";
}

// A change is being committed under it: nobody may read the file before that is seen.
TEST(LeaseTable, WhatIsPinnedEndsLater) {
  LeaseTable table(100);
  const Duration now = std::chrono::seconds(1);
  EXPECT_FALSE(table.Pin(1, kFile));
  table.BeginChange(kFile, 1);
  const uint64_t id = table.TryGrantFileWrite(1, kFile, now)->id;
  table.EndChange(kFile);
  const auto pinned = table.Pin(1, kFile), again = table.Pin(1, kFile);
  ASSERT_TRUE(pinned && again);
  EXPECT_EQ(pinned->id, id);
  EXPECT_EQ(again->id, id);
  EXPECT_FALSE(table.Pin(2, kFile));
  OneShot<Unit> released = table.Released(id);
  table.Release(1, id);
  EXPECT_TRUE(table.HasConflict(kFile, 2, proto::LEASE_READ));
  EXPECT_EQ(table.GoodWrite(1, kFile), 0u);
  EXPECT_FALSE(table.Pin(1, kFile)) << "not once more";
  table.Unpin(*pinned);
  EXPECT_FALSE(released.IsSet());
  table.DropSession(1);
  table.Unpin(*again);
  EXPECT_TRUE(released.IsSet());
  EXPECT_FALSE(table.HasConflict(kFile, 2, proto::LEASE_READ));
  EXPECT_TRUE(table.CountBySession().empty());
}

TEST(LeaseTable, WriteOfAFileIsAnotherLeaseThanReadAndThanThatForLateData) {
  LeaseTable table(100);
  const Duration now = std::chrono::seconds(1);
  const uint64_t pages = table.TryGrantFileRead(1, kFile)->id;
  table.BeginChange(kFile, 1);
  const uint64_t write = table.TryGrantFileWrite(1, kFile, now)->id;
  EXPECT_NE(write, pages);
  EXPECT_EQ(table.TryGrantFileWrite(1, kFile, now)->id, write);
  EXPECT_TRUE(table.MayHoldBack(1, kFile));
  EXPECT_FALSE(table.TryGrantFileRead(2, kFile));
  EXPECT_EQ(table.TryGrantFileRead(1, kFile)->id, pages);
  const uint64_t late = table.GrantLate(1, kFile).id;
  table.Release(1, write);
  EXPECT_FALSE(table.TryGrantFileWrite(1, kFile, now)) << "its data comes late";
  EXPECT_FALSE(table.MayHoldBack(1, kFile));
  EXPECT_TRUE(table.HoldsWrite(1, kFile));
  table.Release(1, late);
  EXPECT_TRUE(table.TryGrantFileWrite(1, kFile, now));
}

TEST(LeaseTable, ReadIsKeptOfWriteWhereNobodyChangesAnything) {
  LeaseTable table(100);
  const Duration now = std::chrono::seconds(1);
  const uint64_t write = table.TryGrantWrite(1, kFile, now)->id;
  ASSERT_TRUE(table.BeginRevoke(write));
  const OneShot<Unit> released = table.Released(write);
  EXPECT_FALSE(table.TryKeepRead(2, write, now)) << "a foreign one";
  table.BeginChange(kFile, 2);
  EXPECT_FALSE(table.TryKeepRead(1, write, now)) << "who changes it waits for the end of WRITE";
  table.EndChange(kFile);
  const auto pinned = table.Pin(1, kFile);
  ASSERT_TRUE(pinned);
  EXPECT_FALSE(table.TryKeepRead(1, write, now)) << "a change is being committed under it";
  table.Unpin(*pinned);
  EXPECT_TRUE(table.HoldsWrite(1, kFile));
  EXPECT_FALSE(released.IsSet());
  const auto kept = table.TryKeepRead(1, write, now);
  ASSERT_TRUE(kept);
  EXPECT_EQ(kept->mode, proto::LEASE_READ);
  EXPECT_NE(kept->id, write) << "an answer with WRITE may still be under way";
  EXPECT_FALSE(kept->revoking);
  EXPECT_TRUE(released.IsSet());
  EXPECT_TRUE(table.TryGrantRead(2, kFile, now));
  EXPECT_FALSE(table.TryKeepRead(1, kept->id, now)) << "READ already";
  EXPECT_TRUE(table.HasConflict(kFile, 2, proto::LEASE_WRITE));
}

TEST(LeaseTable, ReadIsNotKeptWhileNothingIsGranted) {
  LeaseTable table(100);
  const Duration now = std::chrono::seconds(1), later = std::chrono::seconds(9);
  const uint64_t write = table.TryGrantWrite(1, kFile, now)->id;
  table.GrantNoneUntil(kFile, proto::LEASE_WRITE, later);
  const uint64_t kept = table.TryKeepRead(1, write, now)->id;
  const uint64_t again = table.TryGrantWrite(1, kFile, later)->id;
  EXPECT_EQ(again, kept) << "it is raised";
  table.GrantNoneUntil(kFile, proto::LEASE_READ, 2 * later);
  EXPECT_FALSE(table.TryKeepRead(1, again, later));
  EXPECT_TRUE(table.HoldsWrite(1, kFile));
}

TEST(LeaseTable, ATimeWithoutLeasesIsForgottenThoughItEndsWithinAChange) {
  LeaseTable table(100);
  const Duration end = std::chrono::seconds(10), later = std::chrono::seconds(11);
  table.BeginChange(kFile, 1);
  table.GrantNoneUntil(kFile, proto::LEASE_READ, end);
  EXPECT_EQ(table.WhyNot(kFile).until, end);
  EXPECT_FALSE(table.TryGrantRead(2, kFile, later)) << "the change is still under way";
  table.EndChange(kFile);
  const LeaseTable::Refused refused = table.WhyNot(kFile);
  EXPECT_EQ(refused.until, Duration(0));
  EXPECT_EQ(refused.write_until, Duration(0));
  EXPECT_TRUE(table.TryGrantRead(2, kFile, later));
}

TEST(LeaseTable, SharedIsForSeveralWritersAndNobodyElse) {
  LeaseTable table(100);
  const Duration now = std::chrono::seconds(1);
  const uint64_t one = table.TryGrantShared(1, kFile)->id;
  EXPECT_EQ(table.TryGrantShared(1, kFile)->id, one) << "it has it already";
  const uint64_t two = table.TryGrantShared(2, kFile)->id;
  EXPECT_FALSE(table.TryGrantFileRead(3, kFile));
  EXPECT_FALSE(table.TryGrantFileWrite(3, kFile, now));
  EXPECT_TRUE(table.HasConflict(kFile, 1, proto::LEASE_READ)) << "the other one may have changed it";
  EXPECT_FALSE(table.HasConflict(kFile, 1, proto::LEASE_SHARED));
  EXPECT_TRUE(table.HoldsWrite(1, kFile));
  EXPECT_FALSE(table.MayHoldBack(1, kFile));
  EXPECT_EQ(table.GoodWrite(1, kFile), 0u);
  table.Release(2, two);
  EXPECT_FALSE(table.HasConflict(kFile, 1, proto::LEASE_READ));
  EXPECT_TRUE(table.HasConflict(kFile, 3, proto::LEASE_READ));
  table.Release(1, one);
  ASSERT_TRUE(table.TryGrantFileRead(3, kFile));
  EXPECT_FALSE(table.TryGrantShared(1, kFile)) << "somebody reads it";
  EXPECT_TRUE(table.HasConflict(kFile, 1, proto::LEASE_SHARED));
}

TEST(LeaseTable, SharedIsGrantedBesideChangesThatLeaveItAsItIs) {
  LeaseTable table(100);
  table.BeginChange(kFile, 1, /*beside=*/true);
  table.BeginChange(kFile, 2, /*beside=*/true);
  EXPECT_TRUE(table.TryGrantShared(1, kFile));
  table.BeginChange(kFile, 3);
  EXPECT_FALSE(table.TryGrantShared(2, kFile));
  table.EndChange(kFile);
  EXPECT_TRUE(table.TryGrantShared(2, kFile));
  table.EndChange(kFile, /*beside=*/true);
  table.EndChange(kFile, /*beside=*/true);
}

TEST(LeaseTable, WhatIsNotNamedEnds) {
  LeaseTable table(100);
  const Duration now = std::chrono::seconds(1);
  const uint64_t named = table.TryGrantWrite(1, kFile, now)->id;
  ASSERT_TRUE(table.TryGrantWrite(1, kOther, now));
  table.EndUnnamed(1, {named});
  EXPECT_EQ(table.WrittenBy(1), std::vector<Fid>{kFile});
}

// While a resource is being changed no session is granted a lease of it, except its changer as such
// (`changing`), as long as no other session changes it, too.
TEST(LeaseTable, WhoChangesItIsToldWhetherItWillBeHis) {
  LeaseTable table(100);
  const Duration now = std::chrono::seconds(1);
  EXPECT_EQ(table.GoodWrite(1, kFile), 0u);
  table.BeginChange(kFile, 1);
  EXPECT_FALSE(table.TryGrantWrite(1, kFile, now));
  EXPECT_TRUE(table.MayGetWrite(1, kFile, now));
  EXPECT_TRUE(table.TryGrantWrite(1, kFile, now, /*changing=*/true));
  EXPECT_FALSE(table.TryGrantWrite(2, kFile, now, /*changing=*/true));
  table.EndUnnamed(1, {});
  table.BeginChange(kFile, 2);
  EXPECT_FALSE(table.MayGetWrite(1, kFile, now)) << "another change is under way";
  table.EndChange(kFile);
  EXPECT_FALSE(table.MayGetWrite(1, kFile, now)) << "the answer may not say what it has changed";
  EXPECT_FALSE(table.TryGrantWrite(1, kFile, now, /*changing=*/true));
  table.EndChange(kFile);
  const uint64_t id = table.TryGrantWrite(1, kFile, now)->id;
  EXPECT_EQ(table.GoodWrite(1, kFile), id);
  table.BeginChange(kFile, 1);
  EXPECT_TRUE(table.MayGetWrite(1, kFile, now)) << "it is";
  EXPECT_FALSE(table.MayGetWrite(2, kFile, now));
  table.BeginRevoke(id);
  EXPECT_EQ(table.GoodWrite(1, kFile), 0u);
  EXPECT_FALSE(table.MayGetWrite(1, kFile, now));
  table.Release(1, id);
  table.GrantNoneUntil(kFile, proto::LEASE_WRITE, now * 2);
  EXPECT_FALSE(table.MayGetWrite(1, kFile, now));
}

// The reply with the higher mode was lost: the client knows best what it relies on.
TEST(LeaseTable, TheModeIsAsItsHolderSays) {
  LeaseTable table(100);
  const Duration now = std::chrono::seconds(1);
  const uint64_t id = table.TryGrantWrite(1, kFile, now)->id;
  EXPECT_TRUE(table.Restore(1, Claim(id, kFile, proto::LEASE_READ)));
  EXPECT_TRUE(table.TryGrantRead(2, kFile, now));
  EXPECT_FALSE(table.Restore(1, Claim(id, kFile, proto::LEASE_WRITE))) << "another reads by now";
}

// A client's new directories count on their leases; before the limit it is told to wait for answers.
TEST(LeaseTable, ThereIsRoomForWhatIsCountedOn) {
  LeaseTable table(100);
  const Duration now = std::chrono::seconds(1);
  uint32_t n = 0, counted_on = 0;
  for (; table.TryGrantWrite(1, Fid{1, ++n, 0}, now); ++counted_on) {
    if (table.HasAmpleRoom(1)) counted_on = 0;
  }
  EXPECT_EQ(n, 65537u);
  EXPECT_FALSE(table.HasAmpleRoom(1));
  EXPECT_GE(counted_on, 1024u);
  EXPECT_TRUE(table.HasAmpleRoom(2));
}

TEST(LeaseTable, OneThatIsBeingRevokedIsNotGrantedAgain) {
  LeaseTable table(100);
  const uint64_t first = table.Grant(1, kFile, proto::LEASE_READ).id;
  EXPECT_TRUE(table.BeginRevoke(first));
  const uint64_t second = table.Grant(1, kFile, proto::LEASE_READ).id;
  EXPECT_NE(first, second);
  table.Release(1, first);
  EXPECT_EQ(table.HoldersOf(kFile).size(), 1u);
  EXPECT_FALSE(table.BeginRevoke(first));
}

TEST(LeaseTable, AReleaseIsTheHoldersAlone) {
  LeaseTable table(100);
  const uint64_t id = table.Grant(1, kFile, proto::LEASE_WRITE).id;
  OneShot<Unit> released = table.Released(id);
  table.Release(2, id);
  EXPECT_FALSE(released.IsSet());
  table.Release(1, id);
  EXPECT_TRUE(released.IsSet());
  EXPECT_TRUE(table.Released(id).IsSet()) << "there is none: at once";
}

TEST(LeaseTable, AnEndOfTheSessionReleases) {
  LeaseTable table(100);
  OneShot<Unit> released = table.Released(table.Grant(1, kFile, proto::LEASE_WRITE).id);
  table.Grant(2, kOther, proto::LEASE_READ);
  table.DropSession(1);
  EXPECT_TRUE(released.IsSet());
  EXPECT_EQ(table.CountBySession()[1].held, 0u);
  EXPECT_EQ(table.CountBySession()[2].held, 1u);
}

TEST(LeaseTable, RestoresWhatDoesNotConflict) {
  LeaseTable table(100);
  EXPECT_TRUE(table.Restore(1, Claim(7, kFile, proto::LEASE_READ)));
  EXPECT_TRUE(table.Restore(1, Claim(7, kFile, proto::LEASE_READ))) << "said again";
  EXPECT_TRUE(table.Restore(2, Claim(8, kFile, proto::LEASE_READ)));
  EXPECT_FALSE(table.Restore(3, Claim(9, kFile, proto::LEASE_WRITE)));
  EXPECT_FALSE(table.Restore(3, Claim(7, kOther, proto::LEASE_READ))) << "the number of another's";
}

// Ids are the clients' to name: none may make a later grant take the place of one that there is.
TEST(LeaseTable, ARestoredIdIsNotGivenOutAgain) {
  LeaseTable table(100);
  ASSERT_TRUE(table.Restore(1, Claim(100, kFile, proto::LEASE_READ)));
  ASSERT_TRUE(table.Restore(1, Claim(~uint64_t{0} - 1, kOther, proto::LEASE_READ)));
  ASSERT_TRUE(table.Restore(1, Claim(~uint64_t{0}, Fid{1, 4, 0}, proto::LEASE_READ)));
  std::set<uint64_t> ids{100, ~uint64_t{0} - 1, ~uint64_t{0}};
  for (uint32_t i = 0; i < 5; ++i) {
    EXPECT_TRUE(ids.insert(table.Grant(2, Fid{2, i, 0}, proto::LEASE_READ).id).second);
  }
  EXPECT_EQ(table.CountBySession()[1].held, 3u);
  EXPECT_EQ(table.CountBySession()[2].held, 5u);
}

// Several shards, and sessions that end in the middle.
TEST(LeaseTable, ThreadsThatGrantPinAndEndLeaveNothing) {
  constexpr SessionId kSessions = 4;
  constexpr int kRounds = 20000;
  LeaseTable table(100);
  std::atomic<int> writers[8] = {};  // of each resource
  auto run = [&](SessionId session) {
    for (int round = 0; round < kRounds; ++round) {
      const auto number = static_cast<uint32_t>(static_cast<size_t>(round) * session % std::size(writers));
      const Fid resource{1, number, 0};
      table.BeginChange(resource, session);
      const auto grant = table.TryGrantWrite(session, resource, Duration{1}, /*changing=*/true);
      table.EndChange(resource);
      if (!grant) continue;
      EXPECT_EQ(writers[number]++, 0) << "WRITE is for one";
      const auto pinned = table.Pin(session, resource);
      EXPECT_TRUE(pinned);
      EXPECT_FALSE(table.TryGrantRead(session + kSessions, resource, Duration{1}));
      writers[number]--;  // before anybody else can have it
      if (round % 3 == 0) {
        table.DropSession(session);
      } else {
        table.Release(session, grant->id);
      }
      if (pinned) table.Unpin(*pinned);
      EXPECT_FALSE(table.HoldsWrite(session, resource));
    }
  };
  std::vector<std::thread> threads;
  for (SessionId session = 1; session <= kSessions; ++session) threads.emplace_back(run, session);
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(table.CountBySession().empty());
  EXPECT_TRUE(table.WrittenBy(1).empty());
  EXPECT_TRUE(table.TryGrantWrite(1, kFile, Duration{1}));
}

}  // namespace
}  // namespace nacre::mds
