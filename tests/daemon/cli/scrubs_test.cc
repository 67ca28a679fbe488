#include "daemon/cli/scrubs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nacre::cli {
namespace {

constexpr int64_t kNow = 1'000'000;

proto::ScrubState Finished() {
  proto::ScrubState scrub;
  scrub.set_order(5);
  scrub.set_began(kNow - 4 * 3600);
  scrub.set_finished(kNow - 3 * 3600);
  scrub.set_read_bytes(12ull << 30);
  scrub.set_total_bytes(12ull << 30);
  return scrub;
}

TEST(Scrubs, TheTextSaysWhenAndWhatWasFound) {
  EXPECT_EQ(ScrubText(proto::ScrubState(), kNow), "never scrubbed");
  proto::ScrubState scrub = Finished();
  EXPECT_EQ(ScrubText(scrub, kNow), "scrubbed 3 h ago: 12.0 GiB read, nothing is wrong");
  scrub.set_bad_blocks(1);
  EXPECT_EQ(ScrubText(scrub, kNow), "scrubbed 3 h ago: 12.0 GiB read, 1 bad block, LOST");
  EXPECT_TRUE(FoundLoss(scrub));
  scrub.set_bad_blocks(3);
  scrub.set_repaired_blocks(1);
  EXPECT_EQ(ScrubText(scrub, kNow), "scrubbed 3 h ago: 12.0 GiB read, 3 bad blocks, 2 of them LOST");
  scrub.set_repaired_blocks(3);
  EXPECT_FALSE(FoundLoss(scrub));
  scrub.set_differing_objects(2);
  EXPECT_EQ(ScrubText(scrub, kNow),
            "scrubbed 3 h ago: 12.0 GiB read, 3 bad blocks, repaired; 2 objects differed at another member, "
            "which is filled anew");
}

TEST(Scrubs, OneThatRunsOrWasStoppedSaysSo) {
  proto::ScrubState scrub = Finished();
  scrub.set_stopped(true);
  EXPECT_EQ(ScrubText(scrub, kNow), "the scrub begun 4 h ago was stopped: 12.0 GiB read, nothing is wrong");
  scrub.set_running(true);
  scrub.set_read_bytes(3ull << 30);
  EXPECT_EQ(ScrubText(scrub, kNow),
            "is being scrubbed: 3.00 GiB of about 12.0 GiB read, nothing is wrong so far");
}

TEST(Scrubs, AStoreIsThroughWhenItHasDoneThatOrder) {
  ScrubbedStore store;
  store.up = true;
  *store.info.mutable_scrub() = Finished();
  EXPECT_TRUE(IsThrough(store, 5));
  EXPECT_FALSE(IsThrough(store, 6));
  store.info.mutable_scrub()->set_running(true);
  EXPECT_FALSE(IsThrough(store, 5));
  store.in_sync = false;
  EXPECT_TRUE(IsThrough(store, 6)) << "it is filled first";
  store.in_sync = true;
  store.up = false;
  EXPECT_TRUE(IsThrough(store, 6));
}

TEST(Scrubs, AStoreThatCouldNotBeScrubbedHasNotDoneTheOrder) {
  ScrubbedStore store;
  *store.info.mutable_scrub() = Finished();
  EXPECT_TRUE(HasDone(store, 5)) << "it went down later";
  EXPECT_FALSE(HasDone(store, 6));
  EXPECT_TRUE(IsThrough(store, 6));
}

TEST(Scrubs, AnOrderIsNewerThanOneFromAClockThatWasAhead) {
  EXPECT_EQ(NewOrderNumber({}, 100), 100u);
  ScrubbedStore store;
  *store.info.mutable_scrub() = Finished();
  EXPECT_EQ(NewOrderNumber({store}, 100), 100u);
  store.info.mutable_scrub()->set_order(2000);
  EXPECT_EQ(NewOrderNumber({store, {}}, 100), 2001u);
}

TEST(Scrubs, EachMemberIsAStore) {
  proto::ClusterStatus status;
  status.mutable_map()->add_osts()->mutable_info()->set_index(1);
  proto::OstState* chain = status.mutable_map()->add_osts();
  chain->mutable_info()->set_index(2);
  chain->add_members()->set_address("a:1");
  chain->add_members()->set_address("b:1");
  const std::vector<ScrubbedStore> stores = ScrubbedStores(status);
  ASSERT_EQ(stores.size(), 3u);
  EXPECT_EQ(stores[0].ost, 1u);
  EXPECT_EQ(stores[2].address, "b:1");
}

}  // namespace
}  // namespace nacre::cli
