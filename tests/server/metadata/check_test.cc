#include "server/metadata/check.h"

#include "server/metadata/keys.h"
#include "server/metadata/name_hash.h"
#include "tests/common/await.h"
#include "tests/server/metadata/harness.h"

namespace nacre::mds {
namespace {

class CheckTest : public testing::Test {
 protected:
  CheckTest() {
    d = FidOf(client.Mkdir(kRootFid, "d"));
    f = FidOf(client.Mknod(d, "f", S_IFREG | 0644));
    client.Link(f, kRootFid, "g");
    client.Symlink(d, "s", "f");
    open_file = FidOf(client.Create(d, "open"));
    client.Unlink(d, "open");
    proto::MetadataRequest xattr;
    *xattr.mutable_set_xattr()->mutable_fid() = ToProto(f);
    xattr.mutable_set_xattr()->set_name("user.x");
    xattr.mutable_set_xattr()->set_value("1");
    client.Call(xattr);
    harness.Crash();
  }

  void Put(std::string key, std::string value) {
    KvBatch batch;
    batch.Put(std::move(key), std::move(value));
    ASSERT_TRUE(Await(harness.store.Commit(std::move(batch))).ok());
  }
  void Erase(std::string key) {
    KvBatch batch;
    batch.Erase(std::move(key));
    ASSERT_TRUE(Await(harness.store.Commit(std::move(batch))).ok());
  }
  Inode Read(Fid fid) { return *ParseInode(fid, *harness.store.Get(FidKey(Table::kInode, fid))); }
  std::string KeyOf(Fid parent, const std::string& name) {
    Superblock superblock = *ParseSuperblock(*harness.store.Get(TableKey(Table::kSuperblock)));
    return EntryKey(parent, NameHash(superblock.hash_key, name));
  }
  // Finds `problem`, repairs, and then finds nothing.
  void Expect(const std::string& problem) {
    auto found = Await(CheckMdt(harness.store, false));
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_THAT(found->problems, testing::Contains(testing::HasSubstr(problem)));
    EXPECT_EQ(found->repaired, 0u);
    ASSERT_TRUE(Await(CheckMdt(harness.store, true)).ok());
    ASSERT_TRUE(Await(CheckMdt(harness.store, true)).ok());  // what a repair makes visible
    auto after = Await(CheckMdt(harness.store, false));
    EXPECT_TRUE(after->clean()) << after->problems[0];
  }

  Harness harness;
  TestClient client{harness};
  Fid d, f, open_file;
};

TEST_F(CheckTest, ASoundTreeIsClean) {
  auto report = Await(CheckMdt(harness.store, false));
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_TRUE(report->clean()) << report->problems[0];
  EXPECT_EQ(report->inodes, 5u);
  EXPECT_EQ(report->entries, 4u);
}

TEST_F(CheckTest, AnEntryWithoutInode) {
  Erase(FidKey(Table::kInode, f));
  Expect("is missing");
}

TEST_F(CheckTest, AnInodeWithoutEntryGetsAName) {
  Erase(KeyOf(d, "s"));
  Expect("has no name");
  harness.Start();
  ASSERT_THAT(client.Connect(), IsOk());
  EXPECT_THAT(client.List(kRootFid), testing::Contains(testing::StartsWith("lost+found.")));
}

TEST_F(CheckTest, ALostDirectoryKeepsItsContent) {
  Erase(KeyOf(kRootFid, "d"));
  Expect("has no name");
}

TEST_F(CheckTest, WrongLinkCount) {
  Inode inode = Read(f);
  inode.nlink = 7;
  Put(FidKey(Table::kInode, f), EncodeInode(inode));
  Expect("counts 7 links, it has 2");
}

TEST_F(CheckTest, WrongEntryCount) {
  Inode inode = Read(d);
  inode.size = 70;
  Put(FidKey(Table::kInode, d), EncodeInode(inode));
  Expect("counts 70 entries, it has 2");
}

TEST_F(CheckTest, TheNameOfThePrimaryLinkIsGone) {
  Erase(KeyOf(d, "f"));
  Expect("names a parent that has no entry for it");
}

TEST_F(CheckTest, DamagedRecords) {
  Put(FidKey(Table::kInode, f), "rubbish");
  Put(KeyOf(d, "s"), "x");
  Expect("damaged");
}

TEST_F(CheckTest, OrphansThatAreNone) {
  Put(FidKey(Table::kOrphan, f), "");
  Expect("has a name");
  Put(FidKey(Table::kOrphan, Fid{9, 9, 9}), "");
  Expect("has no inode");
}

TEST_F(CheckTest, LeftoversOfInodesThatAreGone) {
  Put(XattrKey(Fid{9, 9, 9}, "user.a"), "1");
  Put(FidKey(Table::kBody, Fid{9, 9, 9}), "data");
  Put(ReverseLinkKey(Fid{9, 9, 9}, kRootFid, 512), "");
  Expect("which does not exist");
}

TEST_F(CheckTest, WrongCounters) {
  Put(InodeCountKey(0), EncodeNumber(1000));
  Expect("inodes are counted");
  Put(CounterKey(CounterId::kObjectSequence), EncodeNumber(1));
  Expect("although");
}

TEST_F(CheckTest, ObjectsInUseAreTakenFromTheDestroyQueue) {
  Inode inode = Read(f);
  inode.inline_data = false;
  Put(FidKey(Table::kInode, f), EncodeInode(inode));
  Put(DestroyAtKeyOf(3, inode.layout.object_sequence), EncodeDestroyAt({{0}}));
  Expect("belong to a file");
  Put(NumberKey(Table::kDestroyByFile, inode.layout.object_sequence), EncodeDestroy({}));
  Expect("belong to a file");
  Put(NumberKey(Table::kNewObjects, inode.layout.object_sequence), EncodeNewObjects({.groups = {0}}));
  Expect("belong to a file");
}

TEST_F(CheckTest, ADirectoryThatIsAdoptedCountsWhatItStillHas) {
  Erase(KeyOf(kRootFid, "d"));
  Erase(KeyOf(d, "s"));
  ASSERT_TRUE(Await(CheckMdt(harness.store, true)).ok());
  auto after = Await(CheckMdt(harness.store, false));
  EXPECT_TRUE(after->clean()) << after->problems[0];
  EXPECT_EQ(Read(d).size, 1u);
}

TEST_F(CheckTest, DamagedKeysOfTheDestroyQueue) {
  Put(TableKey(Table::kDestroyAt) + "\xff", EncodeDestroyAt({{0}}));
  Expect("damaged key of a destroy record");
}

TEST_F(CheckTest, NoMdtAtAll) {
  MemKv other;
  EXPECT_FALSE(Await(CheckMdt(other, true)).ok());
}

TEST_F(CheckTest, ObjectsAgainstTheMdt) {
  Inode inode = Read(f);
  inode.inline_data = false;
  inode.blocks = 8;
  Put(FidKey(Table::kInode, f), EncodeInode(inode));
  const OstIndex ost = inode.layout.components[0].groups[0];
  auto listed = [](uint64_t sequence, uint32_t stripe, Fid parent) {
    proto::ListedObject object;
    object.mutable_object()->set_sequence(sequence);
    object.mutable_object()->set_stripe(stripe);
    *object.mutable_parent() = ToProto(parent);
    return object;
  };
  ObjectCheck missing(harness.store);
  EXPECT_THAT(Await(missing.Finish(false))->problems,
              testing::ElementsAre(testing::HasSubstr("none of its objects exists")));

  ObjectCheck sound(harness.store);
  ASSERT_TRUE(sound.AddObject(ost, listed(inode.layout.object_sequence, 0, f)).ok());
  EXPECT_TRUE(Await(sound.Finish(false))->clean());

  ObjectCheck orphan(harness.store);
  ASSERT_TRUE(orphan.AddObject(ost, listed(inode.layout.object_sequence, 0, f)).ok());
  ASSERT_TRUE(orphan.AddObject(1, listed(0xdead, 1, Fid{9, 9, 9})).ok());
  EXPECT_EQ(Await(orphan.Finish(true))->problem_count, 1u);
  auto queued = harness.store.Get(DestroyAtKeyOf(1, 0xdead));
  ASSERT_TRUE(queued.ok());
  EXPECT_THAT(ParseDestroyAt(*queued)->stripes, testing::ElementsAre(1));

  ObjectCheck misplaced(harness.store);
  ASSERT_TRUE(misplaced.AddObject(ost + 1, listed(inode.layout.object_sequence, 0, f)).ok());
  EXPECT_EQ(Await(misplaced.Finish(true))->problem_count, 2u);
  EXPECT_FALSE(harness.store.Get(DestroyAtKeyOf(ost + 1, inode.layout.object_sequence)).ok());
}

// As after a restore of the MDT: the file was removed since the backup, and its objects with it. It would
// read as zeros.
TEST_F(CheckTest, AFileThatHasLostItsObjectsIsMadeEmptyWhereAllItsOstsWereLookedAt) {
  Inode inode = Read(f);
  inode.inline_data = false;
  inode.blocks = 8;
  inode.size = 4000;
  Put(FidKey(Table::kInode, f), EncodeInode(inode));
  const OstIndex ost = inode.layout.components[0].groups[0];
  const std::string uuid = absl::StrCat("ost-uuid-", ost);

  ObjectCheck not_looked_at(harness.store), another_disk(harness.store), reported(harness.store);
  ASSERT_TRUE(another_disk.AddOst(ost, "of another OST").ok());
  ASSERT_TRUE(reported.AddOst(ost, uuid).ok());
  EXPECT_EQ(Await(not_looked_at.Finish(true))->repaired, 0u);
  EXPECT_EQ(Await(another_disk.Finish(true))->repaired, 0u);
  EXPECT_THAT(Await(reported.Finish(false))->problems, testing::ElementsAre(testing::HasSubstr("(/d/f)")));
  EXPECT_EQ(Read(f), inode);

  ObjectCheck repairing(harness.store);
  ASSERT_TRUE(repairing.AddOst(ost, uuid).ok());
  EXPECT_EQ(Await(repairing.Finish(true))->repaired, 1u);
  EXPECT_EQ(Read(f).size, 0u);
  EXPECT_EQ(Read(f).blocks, 0u);
  ObjectCheck after(harness.store);
  EXPECT_TRUE(Await(after.Finish(false))->clean());
  auto found = Await(CheckMdt(harness.store, false));
  EXPECT_TRUE(found->clean()) << found->problems[0];
}

}  // namespace
}  // namespace nacre::mds
