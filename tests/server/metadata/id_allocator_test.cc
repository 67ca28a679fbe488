#include "server/metadata/id_allocator.h"

#include <gtest/gtest.h>

#include <set>

#include "server/kv/mem_kv.h"
#include "tests/common/await.h"

namespace nacre::mds {
namespace {

class IdAllocatorTest : public testing::Test {
 protected:
  // A process of the MDS.
  struct Run {
    explicit Run(MemKv& store, Random& random)
        : tables(*Await(Tables::Open(store, random, WallTime{}, 64 << 20))) {
      Status started = Await(ids.Start());
      EXPECT_TRUE(started.ok()) << started;
    }
    std::unique_ptr<Tables> tables;
    IdAllocator ids{*tables};
  };

  MemKv store;
  SeededRandom random{7};
};

TEST_F(IdAllocatorTest, NoNumberIsGivenTwiceNotEvenAfterALossOfPower) {
  std::set<Fid> fids;
  std::set<uint64_t> objects, sessions;
  for (int run = 0; run < 10; ++run) {
    Run process(store, random);
    for (int i = 0; i < 5; ++i) {
      EXPECT_TRUE(fids.insert(*Await(process.ids.NextFid())).second);
      EXPECT_TRUE(objects.insert(*Await(process.ids.NextObjectSequence())).second);
      EXPECT_TRUE(sessions.insert(*Await(process.ids.NextSession())).second);
    }
    store.LosePower(random);
  }
}

// OSSes refuse what lies below what they have seen of the MDS: a clock that goes back must not matter.
TEST_F(IdAllocatorTest, EachRunNumbersItsObjectRequestsAboveAllEarlierOnes) {
  constexpr uint64_t kWallClockOfOlderVersions = uint64_t{253402300800} * 1'000'000;  // in the year 10000
  uint64_t before = kWallClockOfOlderVersions;
  for (int run = 0; run < 5; ++run) {
    Run process(store, random);
    const uint64_t first = process.ids.FirstObjectRequest();
    EXPECT_GT(first, before);
    before = first + (uint64_t{1} << 35);  // what it may have used
    store.LosePower(random);
  }
}

TEST(SessionSequences, AreApartFromEachOtherAndFromTheMdss) {
  for (SessionId session : {uint64_t{1}, uint64_t{4097}, (uint64_t{1} << 30) - 1, uint64_t{1} << 30,
                            uint64_t{50'000'000} * kPerSecond + 7}) {
    EXPECT_EQ(SessionOfSequence(SessionSequence(session)), session);
  }
  for (uint64_t sequence : {uint64_t{1}, (uint64_t{1} << 30) - 1, uint64_t{1} << 31, 50'000'000 * kPerSecond})
    EXPECT_EQ(SessionOfSequence(sequence), 0u) << sequence;
  EXPECT_EQ(SessionSequence(uint64_t{1} << 63), 0u) << "a fence of all is nobody's";
}

TEST(FirstAfterRestore, LiesBeyondWhatCanHaveBeenGivenOut) {
  const WallTime then{kCountedFrom + 1000, 0}, later{kCountedFrom + 1100, 0};
  for (CounterId counter : {CounterId::kFidSequence, CounterId::kObjectSequence, CounterId::kSession}) {
    const uint64_t first = *FirstAfterRestore(counter, 5, then);
    EXPECT_GT(*FirstAfterRestore(counter, 5, later), first + 99 * kPerSecond);
    EXPECT_GT(*FirstAfterRestore(counter, first + 7, later), first + 99 * kPerSecond);
    EXPECT_EQ(SessionOfSequence(first), 0u);
    EXPECT_TRUE(absl::IsFailedPrecondition(FirstAfterRestore(counter, first, then).status()));
  }
  EXPECT_GT(*FirstAfterRestore(CounterId::kRun, 5, later), *FirstAfterRestore(CounterId::kRun, 5, then) + 5);
}

// FirstObjectRequest has 27 bits for the runs, and FIDs and sessions keep to their ranges.
TEST(FirstAfterRestore, HasRoomForDecades) {
  const WallTime in_2092{3'850'000'000, 0};
  EXPECT_LT(*FirstAfterRestore(CounterId::kRun, 1, in_2092), uint64_t{1} << 27);
  EXPECT_LT(*FirstAfterRestore(CounterId::kSession, 1, in_2092), kFirstLateSessionSequence);
  EXPECT_LT(*FirstAfterRestore(CounterId::kFidSequence, 1, in_2092), kFirstLateSessionSequence);
}

}  // namespace
}  // namespace nacre::mds
