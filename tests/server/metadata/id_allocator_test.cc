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
    explicit Run(MemKv& store, Random& random) : tables(*Await(Tables::Open(store, random, WallTime{}))) {
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

}  // namespace
}  // namespace nacre::mds
