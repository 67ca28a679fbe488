#include "server/metadata/destroyer.h"

#include "server/metadata/keys.h"
#include "tests/server/metadata/harness.h"

namespace nacre::mds {
namespace {

class DestroyerTest : public testing::Test {
 protected:
  // Objects of one file without an inode, stripe n on groups[n], and the records that want them destroyed.
  void Queue(uint64_t sequence, std::vector<uint32_t> groups) {
    for (uint32_t n = 0; n < groups.size(); ++n) harness.osts.objects[groups[n]][{sequence, n}].data = "data";
    Layout layout;
    layout.object_sequence = sequence;
    layout.components.resize(1);
    layout.components[0].groups = std::move(groups);
    KvBatch batch;
    QueueDestroy(layout, &batch);
    Commit(std::move(batch));
  }
  void Put(std::string key, std::string value) {
    KvBatch batch;
    batch.Put(std::move(key), std::move(value));
    Commit(std::move(batch));
  }
  void Commit(KvBatch batch) {
    Status committed = harness.Await(harness.store.Commit(std::move(batch)));
    ASSERT_TRUE(committed.ok()) << committed;
  }
  size_t QueuedRecords() {
    std::string from = TableKey(Table::kDestroyAt);
    return harness.store.Scan(from, PrefixEnd(from), 1000)->size();
  }
  size_t Calls(const std::string& what) {
    return static_cast<size_t>(std::count(harness.osts.calls.begin(), harness.osts.calls.end(), what));
  }

  Harness harness;
};

TEST_F(DestroyerTest, DestroysWhatIsQueued) {
  Queue(7, {0, 1, 0});
  EXPECT_EQ(QueuedRecords(), 2u);
  harness.RunFor(std::chrono::seconds(3));
  EXPECT_EQ(harness.osts.CountObjects(), 0u);
  EXPECT_EQ(QueuedRecords(), 0u);
}

TEST_F(DestroyerTest, WorksThroughMoreThanAPage) {
  for (uint64_t sequence = 1; sequence <= 700; ++sequence) Queue(sequence, {0});
  harness.RunFor(std::chrono::seconds(3));
  EXPECT_EQ(harness.osts.CountObjects(), 0u);
  EXPECT_EQ(QueuedRecords(), 0u);
}

// It dies after the MDS has last heard of it, so that it is asked, and does not answer.
TEST_F(DestroyerTest, AnOstThatDiesKeepsNoOtherFromDestroying) {
  harness.osts.away = {1};
  Queue(7, {0, 1, 2, 3});
  harness.RunFor(std::chrono::seconds(3));
  EXPECT_EQ(harness.osts.CountObjects(), 1u);
  EXPECT_EQ(QueuedRecords(), 1u);
  Queue(8, {0, 1, 2, 3});
  harness.RunFor(std::chrono::hours(1));
  EXPECT_EQ(harness.osts.CountObjects(), 2u);
  EXPECT_EQ(Calls("destroy 0"), 2u) << "what is destroyed was destroyed again";
  harness.osts.away = {};
  harness.RunFor(std::chrono::seconds(20));
  EXPECT_EQ(harness.osts.CountObjects(), 0u);
  EXPECT_EQ(QueuedRecords(), 0u);
}

TEST_F(DestroyerTest, AnOstThatRefusesKeepsNoOtherFromDestroying) {
  harness.osts.refuses[1] = EIO;
  Queue(7, {0, 1});
  harness.RunFor(std::chrono::seconds(3));
  EXPECT_EQ(harness.osts.CountObjects(), 1u);
  harness.osts.refuses.clear();
  harness.RunFor(std::chrono::seconds(20));
  EXPECT_EQ(harness.osts.CountObjects(), 0u);
}

TEST_F(DestroyerTest, ADamagedRecordKeepsNoOtherFromItsEnd) {
  Put(DestroyAtKeyOf(0, 5), "abc");
  Queue(7, {0});
  harness.RunFor(std::chrono::seconds(3));
  EXPECT_EQ(harness.osts.CountObjects(), 0u);
  EXPECT_EQ(QueuedRecords(), 1u);
}

// Its keys are walked by OSTs: one that names none must not be found again and again.
TEST_F(DestroyerTest, ADamagedKeyKeepsNoOtherFromItsEnd) {
  Put(TableKey(Table::kDestroyAt) + "\xff", "abc");
  Put(DestroyAtPrefix(0) + "short", EncodeDestroyAt({{0}}));
  Queue(7, {0, 1});
  harness.RunFor(std::chrono::seconds(3));
  EXPECT_EQ(harness.osts.CountObjects(), 0u);
  EXPECT_EQ(QueuedRecords(), 2u);
}

TEST_F(DestroyerTest, NothingIsDestroyedBeforeItsRecordIsDurable) {
  harness.store.SetSyncHook([]() -> Task<Status> { co_return absl::UnavailableError("the disk is slow"); });
  Queue(7, {0});
  harness.RunFor(std::chrono::seconds(30));
  EXPECT_EQ(harness.osts.CountObjects(), 1u);
  harness.store.SetSyncHook(nullptr);
  harness.RunFor(std::chrono::seconds(20));
  EXPECT_EQ(harness.osts.CountObjects(), 0u);
}

TEST_F(DestroyerTest, RecordsByFileAreTakenUp) {
  harness.osts.objects[2][{9, 0}].data = harness.osts.objects[3][{9, 1}].data = "data";
  Put(NumberKey(Table::kDestroyByFile, 9), EncodeDestroy({{2, 3}}));
  Put(NumberKey(Table::kDestroyByFile, 10), "abc");
  harness.Restart();
  harness.RegisterOsts();
  harness.RunFor(std::chrono::seconds(3));
  EXPECT_EQ(harness.osts.CountObjects(), 0u);
  EXPECT_FALSE(harness.store.Get(NumberKey(Table::kDestroyByFile, 9)).ok());
}

TEST_F(DestroyerTest, TellsHowMuchIsLeft) {
  harness.osts.away = {1};
  Queue(7, {0, 1, 1});
  harness.RunFor(std::chrono::seconds(3));
  auto status = harness.Await(harness.server->GetStatus());
  EXPECT_EQ(status.destroy_queue(), 2u);
}

}  // namespace
}  // namespace nacre::mds
