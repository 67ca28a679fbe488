#include "tests/server/metadata/harness.h"

namespace nacre::mds {
namespace {

constexpr uint32_t kNoReplace = 1, kExchange = 2;

class RenameTest : public testing::Test {
 protected:
  Fid Dir(Fid parent, const std::string& name) { return FidOf(client.Mkdir(parent, name)); }
  Fid File(Fid parent, const std::string& name) { return FidOf(client.Mknod(parent, name, S_IFREG | 0644)); }
  uint32_t Links(Fid fid) { return client.Getattr(fid).attr().attr().nlink(); }

  Harness harness;
  TestClient client{harness};
};

TEST_F(RenameTest, WithinADirectoryAndToAnother) {
  Fid d = Dir(kRootFid, "d"), f = File(kRootFid, "a");
  EXPECT_THAT(client.Rename(kRootFid, "a", kRootFid, "b"), IsOk());
  EXPECT_THAT(client.Lookup(kRootFid, "a"), Fails(ENOENT));
  EXPECT_EQ(FidOf(client.Lookup(kRootFid, "b")), f);
  auto moved = client.Rename(kRootFid, "b", d, "c");
  ASSERT_THAT(moved, IsOk());
  EXPECT_EQ(moved.entry().parent().size(), 1u);
  EXPECT_EQ(moved.entry().old_parent().size(), 1u);
  EXPECT_EQ(FidOf(client.Lookup(d, "c")), f);
  EXPECT_THAT(client.Rename(kRootFid, "nothing", d, "x"), Fails(ENOENT));
}

TEST_F(RenameTest, ReplacesAFileAndDropsItsLink) {
  Fid a = File(kRootFid, "a"), b = File(kRootFid, "b");
  auto moved = client.Rename(kRootFid, "a", kRootFid, "b");
  ASSERT_THAT(moved, IsOk());
  EXPECT_EQ(moved.entry().replaced().nlink(), 0u);
  EXPECT_EQ(FidOf(client.Lookup(kRootFid, "b")), a);
  EXPECT_THAT(client.Getattr(b), Fails(ENOENT));
  EXPECT_EQ(client.Getattr(kRootFid).attr().attr().size(), 1u);
}

TEST_F(RenameTest, TypesMustAgree) {
  Fid d = Dir(kRootFid, "d");
  File(kRootFid, "f");
  EXPECT_THAT(client.Rename(kRootFid, "f", kRootFid, "d"), Fails(EISDIR));
  EXPECT_THAT(client.Rename(kRootFid, "d", kRootFid, "f"), Fails(ENOTDIR));
  File(d, "x");
  Dir(kRootFid, "e");
  EXPECT_THAT(client.Rename(kRootFid, "e", kRootFid, "d"), Fails(ENOTEMPTY));
  EXPECT_THAT(client.Rename(kRootFid, "d", kRootFid, "e"), IsOk());
}

TEST_F(RenameTest, ADirectoryMovesWithItsParentLinks) {
  Fid a = Dir(kRootFid, "a"), b = Dir(kRootFid, "b"), c = Dir(a, "c");
  EXPECT_EQ(Links(a), 3u);
  ASSERT_THAT(client.Rename(a, "c", b, "c"), IsOk());
  EXPECT_EQ(Links(a), 2u);
  EXPECT_EQ(Links(b), 3u);
  EXPECT_EQ(FidOf(client.Lookup(c, "..")), b);
  Dir(kRootFid, "empty");
  EXPECT_EQ(Links(kRootFid), 5u);
  ASSERT_THAT(client.Rename(b, "c", kRootFid, "empty"), IsOk());
  EXPECT_EQ(Links(kRootFid), 5u);
  EXPECT_EQ(Links(b), 2u);
}

TEST_F(RenameTest, NotIntoItsOwnTree) {
  Fid a = Dir(kRootFid, "a"), b = Dir(a, "b"), c = Dir(b, "c");
  EXPECT_THAT(client.Rename(kRootFid, "a", c, "x"), Fails(EINVAL));
  EXPECT_THAT(client.Rename(kRootFid, "a", a, "x"), Fails(EINVAL));
  EXPECT_THAT(client.Rename(a, "b", kRootFid, "a"), Fails(ENOTEMPTY));
  Dir(kRootFid, "z");
  EXPECT_THAT(client.Rename(b, "c", kRootFid, "a", kExchange), Fails(EINVAL));
}

TEST_F(RenameTest, OntoItselfAndOntoAnotherLinkChangesNothing) {
  Fid f = File(kRootFid, "a");
  ASSERT_THAT(client.Link(f, kRootFid, "b"), IsOk());
  EXPECT_THAT(client.Rename(kRootFid, "a", kRootFid, "b"), IsOk());
  EXPECT_THAT(client.Rename(kRootFid, "a", kRootFid, "a"), IsOk());
  File(Dir(kRootFid, "full"), "x");
  EXPECT_THAT(client.Rename(kRootFid, "full", kRootFid, "full"), IsOk());
  ASSERT_THAT(client.Unlink(FidOf(client.Lookup(kRootFid, "full")), "x"), IsOk());
  ASSERT_THAT(client.Rmdir(kRootFid, "full"), IsOk());
  EXPECT_EQ(Links(f), 2u);
  EXPECT_THAT(client.List(kRootFid), testing::UnorderedElementsAre("a", "b"));
}

TEST_F(RenameTest, Flags) {
  Fid a = File(kRootFid, "a"), d = Dir(kRootFid, "d"), s = Dir(d, "s");
  EXPECT_THAT(client.Rename(kRootFid, "a", kRootFid, "d", kNoReplace), Fails(EEXIST));
  EXPECT_THAT(client.Rename(kRootFid, "a", kRootFid, "a", kNoReplace), Fails(EEXIST));
  EXPECT_THAT(client.Rename(kRootFid, "a", kRootFid, "free", kExchange), Fails(ENOENT));
  EXPECT_THAT(client.Rename(kRootFid, "a", kRootFid, "free", kExchange | kNoReplace), Fails(EINVAL));
  EXPECT_THAT(client.Rename(kRootFid, "a", kRootFid, "free", 4), Fails(EINVAL));
  ASSERT_THAT(client.Rename(kRootFid, "a", d, "s", kExchange), IsOk());
  EXPECT_EQ(FidOf(client.Lookup(kRootFid, "a")), s);
  EXPECT_EQ(FidOf(client.Lookup(d, "s")), a);
  EXPECT_EQ(FidOf(client.Lookup(s, "..")), kRootFid);
  EXPECT_EQ(Links(d), 2u);
  EXPECT_EQ(Links(kRootFid), 4u);
  ASSERT_THAT(client.Rename(kRootFid, "a", kRootFid, "b", kNoReplace), IsOk());
}

TEST_F(RenameTest, StickyDirectoriesKeepOthersOut) {
  Fid t = FidOf(client.Mkdir(kRootFid, "t", 01777));
  client.As(1000, 1000);
  File(t, "mine");
  client.As(2000, 2000);
  File(t, "other");
  EXPECT_THAT(client.Rename(t, "mine", t, "x"), Fails(EPERM));
  EXPECT_THAT(client.Rename(t, "other", t, "mine"), Fails(EPERM));
  EXPECT_THAT(client.Unlink(t, "mine"), Fails(EPERM));
  client.As(1000, 1000);
  EXPECT_THAT(client.Rename(t, "mine", t, "x"), IsOk());
}

TEST_F(RenameTest, ADirectoryOfOthersDoesNotChangeItsParent) {
  Fid t = FidOf(client.Mkdir(kRootFid, "t", 0777)), u = FidOf(client.Mkdir(kRootFid, "u", 0777));
  Dir(t, "d");
  client.As(1000, 1000);
  EXPECT_THAT(client.Rename(t, "d", u, "d"), Fails(EACCES));
  EXPECT_THAT(client.Rename(t, "d", t, "e"), IsOk());
}

TEST_F(RenameTest, SecondaryLinksMoveAndThePrimaryIsReplacedWhenItGoes) {
  Fid f = File(kRootFid, "a"), d = Dir(kRootFid, "d");
  ASSERT_THAT(client.Link(f, d, "b"), IsOk());
  ASSERT_THAT(client.Rename(d, "b", d, "c"), IsOk());
  ASSERT_THAT(client.Unlink(kRootFid, "a"), IsOk());
  ASSERT_THAT(client.Rename(d, "c", kRootFid, "e"), IsOk());
  EXPECT_EQ(Links(f), 1u);
  ASSERT_THAT(client.Unlink(kRootFid, "e"), IsOk());
  EXPECT_THAT(client.Getattr(f), Fails(ENOENT));
}

TEST_F(RenameTest, TimesOfEverybodyInvolved) {
  Fid f = File(kRootFid, "a"), d = Dir(kRootFid, "d");
  auto before = client.Getattr(f).attr().attr();
  harness.clock.Step(std::chrono::seconds(5));
  auto moved = client.Rename(kRootFid, "a", d, "a");
  EXPECT_EQ(moved.entry().attr().mtime().seconds(), before.mtime().seconds());
  EXPECT_EQ(moved.entry().attr().ctime().seconds(), before.ctime().seconds() + 5);
  EXPECT_EQ(moved.entry().parent().mtime().seconds(), before.ctime().seconds() + 5);
  EXPECT_EQ(moved.entry().old_parent().ctime().seconds(), before.ctime().seconds() + 5);
}

}  // namespace
}  // namespace nacre::mds
