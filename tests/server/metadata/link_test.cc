// Hard links: counts, limits, which name is the primary one.
#include "server/metadata/keys.h"
#include "server/metadata/records.h"
#include "tests/common/await.h"
#include "tests/server/metadata/harness.h"

namespace nacre::mds {
namespace {

class LinkTest : public testing::Test {
 protected:
  uint32_t Links(Fid fid) { return client.Getattr(fid).attr().attr().nlink(); }

  // As if so many links had been made.
  void SetLinks(Fid fid, uint32_t count) {
    harness.Crash();
    const std::string key = FidKey(Table::kInode, fid);
    Inode inode = *ParseInode(fid, *harness.store.Get(key));
    inode.nlink = count;
    KvBatch batch;
    batch.Put(key, EncodeInode(inode));
    ASSERT_TRUE(Await(harness.store.Commit(std::move(batch))).ok());
    harness.Start();
    ASSERT_THAT(client.Connect(), IsOk());
  }

  Harness harness;
  TestClient client{harness};
};

TEST_F(LinkTest, CountsAndOutlivesItsFirstName) {
  const Fid dir = FidOf(client.Mkdir(kRootFid, "d"));
  const Fid file = FidOf(client.Mknod(kRootFid, "a", S_IFREG | 0644));
  auto linked = client.Link(file, dir, "b");
  ASSERT_THAT(linked, IsOk());
  EXPECT_EQ(linked.entry().attr().nlink(), 2u);
  EXPECT_EQ(linked.entry().parent().size(), 1u);
  EXPECT_THAT(client.Link(file, dir, "b"), Fails(EEXIST));
  ASSERT_THAT(client.Unlink(kRootFid, "a"), IsOk());
  EXPECT_EQ(FidOf(client.Lookup(dir, "b")), file);
  EXPECT_EQ(Links(file), 1u);
  ASSERT_THAT(client.Link(file, kRootFid, "c"), IsOk());
  ASSERT_THAT(client.Unlink(dir, "b"), IsOk());
  ASSERT_THAT(client.Unlink(kRootFid, "c"), IsOk());
  EXPECT_THAT(client.Getattr(file), Fails(ENOENT));
}

TEST_F(LinkTest, StopsAtTheLimit) {
  const Fid file = FidOf(client.Mknod(kRootFid, "a", S_IFREG | 0644));
  SetLinks(file, kMaxFileLinks - 1);
  ASSERT_THAT(client.Link(file, kRootFid, "last"), IsOk());
  EXPECT_THAT(client.Link(file, kRootFid, "more"), Fails(EMLINK));
  EXPECT_THAT(client.Lookup(kRootFid, "more"), Fails(ENOENT));
}

TEST_F(LinkTest, ADirectoryStopsAtItsLimitOfSubdirectories) {
  const Fid dir = FidOf(client.Mkdir(kRootFid, "d"));
  const Fid other = FidOf(client.Mkdir(kRootFid, "other"));
  ASSERT_THAT(client.Mkdir(other, "sub"), IsOk());
  SetLinks(dir, kMaxSubdirectories);
  EXPECT_THAT(client.Mkdir(dir, "more"), Fails(EMLINK));
  EXPECT_THAT(client.Rename(other, "sub", dir, "sub"), Fails(EMLINK));
  EXPECT_THAT(client.Create(dir, "file"), IsOk());
}

TEST_F(LinkTest, Refusals) {
  const Fid dir = FidOf(client.Mkdir(kRootFid, "d"));
  const Fid file = FidOf(client.Create(kRootFid, "a"));
  EXPECT_THAT(client.Link(dir, kRootFid, "e"), Fails(EPERM));
  EXPECT_THAT(client.Link(file, file, "e"), Fails(ENOTDIR));
  EXPECT_THAT(client.Link({7, 7, 7}, kRootFid, "e"), Fails(ENOENT));
  EXPECT_THAT(client.Link(file, {7, 7, 7}, "e"), Fails(ENOENT));
  EXPECT_THAT(client.Link(file, kRootFid, std::string(256, 'n')), Fails(ENAMETOOLONG));
  ASSERT_THAT(client.Unlink(kRootFid, "a"), IsOk());  // open still
  EXPECT_THAT(client.Link(file, kRootFid, "e"), Fails(ENOENT));
  client.As(1000, 1000);
  EXPECT_THAT(client.Link(file, dir, "e"), Fails(EACCES));
}

}  // namespace
}  // namespace nacre::mds
