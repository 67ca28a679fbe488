// Names and attributes under the lease: what needs a request and what does not; the same answers without.
#include <linux/fs.h>

#include <set>

#include "client/inode.h"
#include "tests/client/harness.h"

namespace nacre::client {
namespace {

class Names : public testing::Test {
 protected:
  Names() : client_(harness_.Mount()) {}
  Mounted& c() { return *client_; }
  // Requests that went to the MDS for what `action` does.
  template <typename F>
  int Requests(F action) {
    int before = c().total();
    action();
    harness_.world.RunFor(20ms);  // what was answered before the MDS had done it
    return c().total() - before;
  }

  Harness harness_;
  std::unique_ptr<Mounted> client_;
};

TEST_F(Names, ADirectoryMadeHereNeedsNoLookups) {
  Fid directory = c().Mkdir("d");
  EXPECT_EQ(Requests([&] { EXPECT_THAT(c().Lookup("x", directory).status(), HasErrno(ENOENT)); }), 0);
  EXPECT_EQ(Requests([&] { c().Create("x", O_RDWR, directory); }), 1);
  EXPECT_EQ(Requests([&] { EXPECT_TRUE(c().Lookup("x", directory).ok()); }), 0);
  EXPECT_EQ(Requests([&] { EXPECT_TRUE(c().Await(c().fs().Unlink(c().caller, directory, "x")).ok()); }), 1);
  EXPECT_EQ(Requests([&] { EXPECT_THAT(c().Lookup("x", directory).status(), HasErrno(ENOENT)); }), 0);
}

TEST_F(Names, ADirectoryReadWholeNeedsNoLookups) {
  Fid directory = c().Mkdir("d");
  for (int i = 0; i < 250; ++i)
    EXPECT_TRUE(c().Close(c().Create("f" + std::to_string(i), O_RDWR, directory)).ok());
  ASSERT_TRUE(c().Unmount().ok());
  client_ = harness_.Mount();
  (void)c().Stat(directory);
  EXPECT_EQ(c().List(directory).size(), 250u);
  EXPECT_EQ(Requests([&] {
              for (int i = 0; i < 250; ++i) EXPECT_TRUE(c().Lookup("f" + std::to_string(i), directory).ok());
              EXPECT_THAT(c().Lookup("g", directory).status(), HasErrno(ENOENT));
            }),
            0);
}

TEST_F(Names, ADirectoryReadWholeIsListedAgainWithoutRequests) {
  Fid directory = c().Mkdir("d");
  for (int i = 0; i < 250; ++i)
    EXPECT_TRUE(c().Close(c().Create("f" + std::to_string(i), O_RDWR, directory)).ok());
  ASSERT_TRUE(c().Unmount().ok());
  client_ = harness_.Mount();
  (void)c().Stat(directory);
  const std::vector<std::string> names = c().List(directory);
  EXPECT_EQ(names.size(), 250u);
  EXPECT_EQ(Requests([&] { EXPECT_EQ(c().List(directory), names); }), 0);
}

// A listing goes on with the entries of its beginning; removed ones are left out, new ones may be.
TEST_F(Names, AListingGoesOnWhateverChanges) {
  Fid directory = c().Mkdir("d");
  for (int i = 0; i < 30; ++i) c().Create("f" + std::to_string(100 + i), O_RDWR, directory);
  HandlePtr handle = c().Open(directory, O_RDONLY | O_DIRECTORY);
  std::set<std::string> seen;
  auto read = [&](uint64_t cookie) {
    auto entries = c().Await(c().fs().Readdir(c().caller, handle, cookie, 7, true));
    EXPECT_TRUE(entries.ok()) << entries.status();
    for (const DirEntry& entry : *entries) EXPECT_TRUE(seen.insert(entry.name).second) << entry.name;
    return entries->empty() ? 0 : entries->back().cookie;
  };
  uint64_t cookie = read(0);
  ASSERT_TRUE(c().Await(c().fs().Unlink(c().caller, directory, "f129")).ok());
  c().Create("f000", O_RDWR, directory);
  auto second = harness_.Mount();  // takes the lease away
  ASSERT_TRUE(second->Await(second->fs().Unlink(second->caller, directory, "f128")).ok());
  while (cookie != 0) cookie = read(cookie);
  for (int i = 0; i < 28; ++i) EXPECT_TRUE(seen.contains("f" + std::to_string(100 + i)));
  seen.clear();
  cookie = read(0);
  while (cookie != 0) cookie = read(cookie);
  EXPECT_EQ(seen.size(), 29u);
}

// Page by page from the cache, from the MDS, and from the cache of a new lease: a cookie means the same
// place.
TEST_F(Names, AListingGoesOnWhileTheLeaseComesAndGoes) {
  Fid directory = c().Mkdir("d");
  for (int i = 0; i < 60; ++i) c().Create("f" + std::to_string(100 + i), O_RDWR, directory);
  HandlePtr handle = c().Open(directory, O_RDONLY | O_DIRECTORY);
  std::multiset<std::string> seen;
  uint64_t cookie = 0;
  auto page = [&] {
    auto entries = c().Await(c().fs().Readdir(c().caller, handle, cookie, 5, false));
    EXPECT_TRUE(entries.ok()) << entries.status();
    for (const DirEntry& entry : *entries) seen.insert(entry.name);
    cookie = entries->empty() ? 0 : entries->back().cookie;
  };
  page();
  for (int i = 0; cookie != 0; ++i) {
    auto second = harness_.Mount();  // takes the lease away
    second->Create("new" + std::to_string(i), O_RDWR, directory);
    if (i < 10) {
      std::string name = "f" + std::to_string(159 - i);
      ASSERT_TRUE(second->Await(second->fs().Unlink(second->caller, directory, name)).ok());
    }
    page();
    ASSERT_TRUE(second->Unmount().ok());
    harness_.world.RunFor(2s);  // it is given back
    if (cookie != 0) page();
  }
  for (int i = 0; i < 50; ++i) EXPECT_EQ(seen.count("f" + std::to_string(100 + i)), 1u) << i;
  for (const std::string& name : seen) EXPECT_EQ(seen.count(name), 1u) << name;
}

TEST_F(Names, KnownFilesOpenAndCloseWithoutRequests) {
  HandlePtr file = c().Create("f");
  c().Write(file, 0, "abc");
  EXPECT_TRUE(c().Close(file).ok());
  harness_.world.RunFor(10s);  // its bytes have left
  EXPECT_EQ(Requests([&] {
              file = c().OpenName("f");
              EXPECT_EQ(c().Read(file, 0, 10), "abc");
              EXPECT_EQ(c().Stat(file->inode->fid).size(), 3u);
              EXPECT_TRUE(c().Close(file).ok());
            }),
            0);
}

TEST_F(Names, ASmallFileIsTwoRequests) {
  EXPECT_TRUE(c().Close(c().Create("first")).ok());  // with it comes the lease of the directory
  harness_.world.RunFor(1s);
  EXPECT_EQ(Requests([&] {
              HandlePtr file = c().Create("f");
              for (int i = 0; i < 10; ++i) c().Write(file, static_cast<uint64_t>(100 * i), Pattern(1, 100));
              EXPECT_TRUE(c().Close(file).ok());
              harness_.world.RunFor(10s);
            }),
            2);
}

TEST_F(Names, AFileRemovedSoonIsNeverSent) {
  EXPECT_TRUE(c().Close(c().Create("first")).ok());  // with it comes the lease of the directory
  HandlePtr file = c().Create("f");
  c().Write(file, 0, Pattern(1, 100'000));
  EXPECT_TRUE(c().Close(file).ok());
  ASSERT_TRUE(c().Await(c().fs().Unlink(c().caller, kRootFid, "f")).ok());
  harness_.world.RunFor(20s);
  EXPECT_EQ(c().requests["update_size"], 0);
  EXPECT_EQ(c().fs().Look().dirty_bytes, 0u);
}

TEST_F(Names, RenamesAreSeen) {
  Fid directory = c().Mkdir("d");
  HandlePtr one = c().Create("one");
  HandlePtr two = c().Create("two", O_RDWR, directory);
  c().Write(one, 0, "1");
  c().Write(two, 0, "22");
  auto rename = [&](Fid from, const char* name, Fid to, const char* new_name, uint32_t flags) {
    return c().Await(c().fs().Rename(c().caller, from, name, to, new_name, flags));
  };
  EXPECT_THAT(rename(kRootFid, "one", directory, "two", RENAME_NOREPLACE), HasErrno(EEXIST));
  EXPECT_TRUE(rename(kRootFid, "one", directory, "two", RENAME_EXCHANGE).ok());
  EXPECT_EQ(c().Lookup("two", directory)->attr.size(), 1u);
  EXPECT_EQ(c().Lookup("one")->attr.size(), 2u);
  EXPECT_TRUE(rename(directory, "two", kRootFid, "one", 0).ok());
  EXPECT_THAT(c().Lookup("two", directory).status(), HasErrno(ENOENT));
  EXPECT_EQ(c().Lookup("one")->attr.size(), 1u);
  EXPECT_EQ(c().Read(two, 0, 10), "22");  // replaced, but open
  EXPECT_TRUE(c().Close(two).ok());
}

TEST_F(Names, LinksShareTheirFile) {
  HandlePtr file = c().Create("f");
  ASSERT_TRUE(c().Await(c().fs().Link(c().caller, file->inode->fid, kRootFid, "g")).ok());
  c().Write(file, 0, "abc");
  EXPECT_EQ(c().Lookup("g")->attr.size(), 3u);
  EXPECT_EQ(c().Lookup("f")->attr.nlink(), 2u);
  ASSERT_TRUE(c().Await(c().fs().Unlink(c().caller, kRootFid, "f")).ok());
  EXPECT_EQ(c().Lookup("g")->attr.nlink(), 1u);
  EXPECT_EQ(c().Read(c().OpenName("g"), 0, 10), "abc");
}

TEST_F(Names, SymlinksAndAccess) {
  ASSERT_TRUE(c().Await(c().fs().Symlink(c().caller, kRootFid, "s", "target")).ok());
  EXPECT_EQ(*c().Await(c().fs().Readlink(c().caller, FromProto(c().Lookup("s")->attr.fid()))), "target");
  HandlePtr file = c().Create("private");
  SetAttributes set;
  set.mode = 0600;
  ASSERT_TRUE(c().Await(c().fs().Setattr(c().caller, file->inode->fid, set, nullptr)).ok());
  Caller other;
  other.uid = other.gid = 1000;
  EXPECT_THAT(c().Await(c().fs().Open(other, file->inode->fid, O_RDONLY)).status(), HasErrno(EACCES));
}

// Two tasks change the same names at once: whatever the order of the answers, what is cached is what the MDS
// has.
TEST_F(Names, ConcurrentChangesOfOneName) {
  auto churn = [](Mounted* client, uint64_t seed, int* left) -> Task<void> {
    SeededRandom random(seed);
    for (int i = 0; i < 60; ++i) {
      std::string name = "n" + std::to_string(random.Below(3));
      std::string other = "n" + std::to_string(random.Below(3));
      uint64_t what = random.Below(4);
      if (what == 0) (void)co_await client->fs().Unlink(client->caller, kRootFid, name);
      if (what == 1) (void)co_await client->fs().Rename(client->caller, kRootFid, name, kRootFid, other, 0);
      if (what == 2) (void)co_await client->fs().Mknod(client->caller, kRootFid, name, S_IFREG | 0644, 0);
      Duration negative{};
      if (what == 3) (void)co_await client->fs().Lookup(client->caller, kRootFid, name, &negative);
    }
    --*left;
  };
  int left = 4;
  for (uint64_t seed = 1; seed <= 4; ++seed) Spawn(c().process()->executor(), churn(&c(), seed, &left));
  ASSERT_TRUE(harness_.RunUntil([&] { return left == 0; }));
  std::map<std::string, Fid> cached;
  for (const char* name : {"n0", "n1", "n2"}) {
    auto found = c().Lookup(name);
    if (found.ok()) cached[name] = FromProto(found->attr.fid());
  }
  ASSERT_TRUE(c().Unmount().ok());
  client_ = harness_.Mount();
  std::map<std::string, Fid> real;
  for (const char* name : {"n0", "n1", "n2"}) {
    auto found = c().Lookup(name);
    if (found.ok()) real[name] = FromProto(found->attr.fid());
  }
  EXPECT_EQ(cached, real);
}

}  // namespace
}  // namespace nacre::client
