#include "server/metadata/destroyer.h"

#include "server/metadata/mds.h"
#include "tests/common/await.h"
#include "tests/server/metadata/harness.h"

namespace nacre::mds {
namespace {

// A store in which others get their turn between a Scan's look at the data and its return.
class InterleavedKv : public MemKv {
 public:
  StatusOr<std::vector<KvEntry>> Scan(std::string_view from, std::string_view to, size_t limit) override {
    auto found = MemKv::Scan(from, to, limit);
    if (after_scan && found.ok() && !found->empty()) std::exchange(after_scan, nullptr)();
    return found;
  }

  std::function<void()> after_scan;
};

class DestroyerTest : public testing::Test {
 protected:
  DestroyerTest() {
    MetadataEnvironment environment{harness.context.get_executor(), harness.clock, harness.random, store,
                                    harness.osts};
    auto tables = Await(Tables::Open(store, harness.random, harness.clock.Wall()));
    EXPECT_TRUE(tables.ok()) << tables.status();
    mds = std::make_shared<Mds>(environment, MetadataOptions{}, *std::move(tables));
    proto::RegisterOssRequest registration;
    registration.set_address("fake:0");
    registration.set_instance(1);
    for (OstIndex ost = 0; ost < 2; ++ost) {
      proto::OstInfo* info = registration.add_osts();
      info->set_index(ost);
      info->set_uuid(absl::StrCat("uuid-", ost));
    }
    auto registered = harness.Await(mds->osts.Register(std::move(registration)));
    EXPECT_EQ(registered.status().error(), 0u) << registered.status().message();
  }

  // Objects of one file, and the record that wants them destroyed.
  void Queue(uint64_t sequence, std::vector<uint32_t> groups) {
    for (uint32_t n = 0; n < groups.size(); ++n) harness.osts.objects[groups[n]][{sequence, n}].data = "data";
    KvBatch batch;
    batch.Put(NumberKey(Table::kDestroy, sequence), EncodeDestroy({std::move(groups)}));
    Status queued = Await(mds->tables->CommitBatch(std::move(batch)));
    EXPECT_TRUE(queued.ok()) << queued;
  }
  void TakeOff(uint64_t sequence) {
    KvBatch batch;
    batch.Erase(NumberKey(Table::kDestroy, sequence));
    Status taken = Await(mds->tables->CommitBatch(std::move(batch)));
    EXPECT_TRUE(taken.ok()) << taken;
  }

  Harness harness{/*osts=*/0};
  InterleavedKv store;
  MdsPtr mds;
};

TEST_F(DestroyerTest, DestroysWhatIsQueued) {
  Queue(7, {0, 1});
  auto left = harness.Await(mds->destroyer.Pass(mds));
  ASSERT_TRUE(left.ok()) << left.status();
  EXPECT_FALSE(*left);
  EXPECT_EQ(harness.osts.CountObjects(), 0u);
  EXPECT_TRUE(absl::IsNotFound(store.Get(NumberKey(Table::kDestroy, 7)).status()));
}

TEST_F(DestroyerTest, LeavesWhatIsHeld) {
  Queue(7, {0, 1});
  mds->destroyer.Hold(7);
  ASSERT_TRUE(harness.Await(mds->destroyer.Pass(mds)).ok());
  EXPECT_EQ(harness.osts.CountObjects(), 2u);
  mds->destroyer.Release(7);
  ASSERT_TRUE(harness.Await(mds->destroyer.Pass(mds)).ok());
  EXPECT_EQ(harness.osts.CountObjects(), 0u);
}

// A move-out ends between the look at the queue and the look at what is held: its objects are a file's now.
TEST_F(DestroyerTest, LeavesWhatBecameAFilesWhileTheQueueWasRead) {
  Queue(7, {0, 1});
  mds->destroyer.Hold(7);
  store.after_scan = [&] {
    TakeOff(7);
    mds->destroyer.Release(7);
  };
  ASSERT_TRUE(harness.Await(mds->destroyer.Pass(mds)).ok());
  EXPECT_EQ(store.after_scan, nullptr);
  EXPECT_EQ(harness.osts.CountObjects(), 2u);
  ASSERT_TRUE(harness.Await(mds->destroyer.Pass(mds)).ok());
  EXPECT_EQ(harness.osts.CountObjects(), 2u);
}

}  // namespace
}  // namespace nacre::mds
