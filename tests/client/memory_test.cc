// How much memory goes into what a client knows, and that it works as well with little of it.
#include <malloc.h>

#include <algorithm>
#include <string>
#include <vector>

#include "client/directory_names.h"
#include "client/inode_table.h"
#include "tests/client/cache_fixture.h"

namespace nacre::client {
namespace {

constexpr uint64_t kKiB = 1024;

// --- by themselves ---

TEST(DirectoryNames, CountsWhatItKeepsAndBeginsAnewWhenThereIsTooMuch) {
  MemoryBudget budget(64 * kKiB);
  {
    DirectoryNames names(budget);
    names.SetComplete();
    for (uint32_t i = 0; names.drops() == 0; ++i) {
      ASSERT_LT(i, 1000u);
      names.Set("a name of some length, number " + std::to_string(i), Fid{1, i, 0});
      EXPECT_LE(budget.names(), budget.most_names() + 200);
    }
    EXPECT_FALSE(names.complete());
    EXPECT_EQ(names.size(), 1u);  // the one that was one too many
    EXPECT_EQ(names.Find("a name of some length, number 0").answer, NameKnown::Answer::kUnknown);
    uint32_t kept = 0;
    while (names.TryAdd("listed" + std::to_string(kept), Fid{2, kept, 0})) ++kept;
    EXPECT_GT(kept, 100u);
    EXPECT_TRUE(names.TryAdd("listed0", Fid{3, 0, 0}));  // one that is there takes no more
    EXPECT_EQ(names.Find("listed0").fid, (Fid{3, 0, 0}));
    for (uint32_t i = 0; i < kept; ++i) names.Distrust("listed" + std::to_string(i));
    EXPECT_EQ(names.size(), 1u);
    EXPECT_LT(budget.names(), 200u);
  }
  EXPECT_EQ(budget.names(), 0u);
}

class Table : public CacheFixture {
 protected:
  // As a file is known after a lookup.
  static void Know(Inode& inode) {
    proto::Attr attr;
    *attr.mutable_fid() = ToProto(inode.fid);
    attr.set_mode(S_IFREG | 0644);
    *attr.mutable_atime() = *attr.mutable_mtime() = *attr.mutable_ctime() = *attr.mutable_btime() =
        ToProto(WallTime{1, 0});
    attr.set_change(1);
    attr.set_inline_data(true);
    attr.set_layout_generation(1);
    proto::Layout layout;
    layout.set_generation(1);
    layout.set_object_sequence(7);
    proto::Component* component = layout.add_components();
    component->set_end(UINT64_MAX);
    component->set_stripe_size(1 << 20);
    component->add_ost_group(0);
    std::lock_guard lock(inode.mutex);
    inode.Apply(attr);
    inode.ApplyLayout(layout);
    ASSERT_NE(inode.layout, nullptr);
  }
};

TEST_F(Table, CountsWhatItTakes) {
  constexpr uint32_t kInodes = 20'000;
  InodeTable table(cache_, 1 << 30);
  const size_t before = mallinfo2().uordblks;
  for (uint32_t i = 0; i < kInodes; ++i) Know(*table.Get({1, i, 0}));
  const uint64_t taken = (mallinfo2().uordblks - before) / kInodes;
  const uint64_t counted = table.budget().bytes() / kInodes;
  if (before == 0) GTEST_SKIP() << "this build's malloc does not say what it has given out";
  EXPECT_LE(taken, counted + counted / 20) << "bytes of each inode, more than are counted";
  EXPECT_GE(taken, counted - counted / 5) << "bytes of each inode, fewer than are counted";
}

TEST_F(Table, BytesOfSmallFilesGoBeforeInodesAndThoseOfFilesInUseStay) {
  InodeTable table(cache_, 1 * kMiB);
  const std::string data = Pattern(1, 10'000);
  InodePtr used = table.Get({1, 0, 0});
  used->inline_bytes = std::make_shared<std::string>(data);
  InodePtr dirty = table.Get({1, 1, 0});
  dirty->inline_bytes = std::make_shared<std::string>(data);
  dirty->inline_dirty_end = data.size();
  dirty.reset();
  for (uint32_t i = 2; i < 200; ++i) {
    InodePtr inode = table.Get({1, i, 0});
    Know(*inode);
    inode->inline_bytes = std::make_shared<std::string>(data);
    EXPECT_LE(table.budget().bytes(), 1 * kMiB + 20'000);
  }
  EXPECT_EQ(table.count(), 200u);
  EXPECT_GT(table.budget().contents(), 256 * kKiB);
  EXPECT_FALSE(used->inline_bytes == nullptr);
  EXPECT_FALSE(table.Find({1, 1, 0})->inline_bytes == nullptr);
  EXPECT_TRUE(table.Find({1, 2, 0})->inline_bytes == nullptr);
  EXPECT_FALSE(table.Find({1, 199, 0})->inline_bytes == nullptr);
}

TEST_F(Table, ADirectoryInUseLosesNamesRatherThanTakeAllThereIs) {
  constexpr uint64_t kLimit = 256 * kKiB;
  InodeTable table(cache_, kLimit);
  std::vector<InodePtr> directories;
  for (uint32_t i = 0; i < 20; ++i) directories.push_back(table.Get({1, i, 0}));
  for (const InodePtr& directory : directories) {
    for (uint32_t i = 0; i < 500; ++i) {
      std::lock_guard lock(directory->mutex);
      directory->names.Set("file" + std::to_string(i), Fid{2, i, 0});
    }
    table.Get({3, directory->fid.object, 0});  // whoever comes next makes room
  }
  EXPECT_LT(table.budget().bytes(), kLimit + 80 * kKiB);
  EXPECT_GT(directories.back()->names.size(), 100u);
}

// --- with a cluster ---

class Memory : public testing::Test {
 protected:
  static constexpr uint64_t kKnown = 1 * kMiB;

  static HarnessOptions WithLittle() {
    HarnessOptions options;
    options.client.known_bytes = kKnown;
    return options;
  }
  Memory() : harness_(WithLittle()), client_(harness_.Mount()) {}
  Mounted& c() { return *client_; }

  void MountAgain() {
    ASSERT_TRUE(c().Unmount().ok());
    client_ = harness_.Mount();
  }
  // No more than allowed, but for what has come since room was made the last time.
  void ExpectBounded() { EXPECT_LE(c().fs().Look().known_bytes, kKnown + 64 * kKiB); }

  Harness harness_;
  std::unique_ptr<Mounted> client_;
};

TEST_F(Memory, SmallFilesTakeNoMoreThanTheirShare) {
  constexpr int kFiles = 300;
  constexpr size_t kSize = 12'000;
  const Fid directory = c().Mkdir("d");
  auto name = [](int i) { return "f" + std::to_string(i); };
  for (int i = 0; i < kFiles; ++i) {
    HandlePtr file = c().Create(name(i), O_RDWR, directory);
    c().Write(file, 0, Pattern(static_cast<uint64_t>(i), kSize));
    EXPECT_TRUE(c().Close(file).ok());
    harness_.world.RunFor(1ms);  // it has left
    ExpectBounded();
  }
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < kFiles; ++i) {
      HandlePtr file = c().OpenName(name(i), O_RDONLY, directory);
      ASSERT_NE(file, nullptr);
      EXPECT_EQ(c().Read(file, 0, kSize + 1), Pattern(static_cast<uint64_t>(i), kSize)) << i;
      EXPECT_TRUE(c().Close(file).ok());
      ExpectBounded();
    }
    EXPECT_GT(c().fs().Look().small_bytes, kKnown / 5) << "what there is room for is kept";
    if (round == 0) MountAgain();
  }
}

// Many small files that are written and not closed: nothing of them may go before it has been sent.
TEST_F(Memory, WhatIsHeldBackStaysWhateverItTakes) {
  constexpr int kFiles = 150;
  constexpr size_t kSize = 12'000;
  std::vector<HandlePtr> files;
  for (int i = 0; i < kFiles; ++i) {
    files.push_back(c().Create("f" + std::to_string(i)));
    c().Write(files.back(), 0, Pattern(static_cast<uint64_t>(i), kSize));
  }
  EXPECT_GT(c().fs().Look().small_bytes, kFiles * kSize);
  for (int i = 0; i < kFiles; ++i) {
    EXPECT_EQ(c().Read(files[static_cast<size_t>(i)], 0, kSize), Pattern(static_cast<uint64_t>(i), kSize));
    EXPECT_TRUE(c().Close(files[static_cast<size_t>(i)]).ok());
  }
  files.clear();
  harness_.world.RunFor(1s);
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(c().Lookup("f" + std::to_string(i)).ok());
  c().Mkdir("d");
  ExpectBounded();
  MountAgain();
  for (int i = 0; i < kFiles; ++i) {
    HandlePtr file = c().OpenName("f" + std::to_string(i), O_RDONLY);
    ASSERT_NE(file, nullptr);
    EXPECT_EQ(c().Read(file, 0, kSize), Pattern(static_cast<uint64_t>(i), kSize)) << i;
  }
}

TEST_F(Memory, ADirectoryLargerThanTheLimitIsMadeListedAndRemoved) {
  constexpr int kNames = 5000;  // a quarter of the budget is enough for some 2,600
  const Fid directory = c().Mkdir("d");
  std::vector<std::string> names;
  for (int i = 0; i < kNames; ++i) names.push_back("name" + std::to_string(10'000 + i));
  for (const std::string& name : names) {
    EXPECT_THAT(c().Lookup(name, directory).status(), HasErrno(ENOENT));
    EXPECT_TRUE(c().Await(c().fs().Mknod(c().caller, directory, name, S_IFREG | 0644, 0)).ok());
  }
  harness_.world.RunFor(1s);
  ExpectBounded();
  EXPECT_EQ(c().List(directory), names);
  MountAgain();
  EXPECT_EQ(c().List(directory), names);
  ExpectBounded();
  EXPECT_THAT(c().Lookup("name9999", directory).status(), HasErrno(ENOENT));
  EXPECT_THAT(c().Await(c().fs().Mknod(c().caller, directory, names.back(), S_IFREG | 0644, 0)).status(),
              HasErrno(EEXIST));
  for (int i = 0; i < kNames; i += 2)
    EXPECT_TRUE(c().Await(c().fs().Unlink(c().caller, directory, names[static_cast<size_t>(i)])).ok());
  std::vector<std::string> left;
  for (int i = 1; i < kNames; i += 2) left.push_back(names[static_cast<size_t>(i)]);
  EXPECT_EQ(c().List(directory), left);
  ExpectBounded();
  for (const std::string& name : left)
    EXPECT_TRUE(c().Await(c().fs().Unlink(c().caller, directory, name)).ok());
  EXPECT_TRUE(c().Await(c().fs().Rmdir(c().caller, kRootFid, "d")).ok());
}

// Room for fewer inodes than one answer brings: what is lost on the way was not read.
TEST(LittleMemory, AListingThatDrivesItselfOutIsNotTakenForWhole) {
  constexpr int kNames = 90;
  HarnessOptions options;
  options.client.known_bytes = 64 * kKiB;
  Harness harness(options);
  auto client = harness.Mount();
  const Fid directory = client->Mkdir("d");
  auto name = [](int i) { return "f" + std::to_string(i); };
  for (int i = 0; i < kNames; ++i)
    EXPECT_TRUE(
        client->Await(client->fs().Mknod(client->caller, directory, name(i), S_IFREG | 0644, 0)).ok());
  ASSERT_TRUE(client->Unmount().ok());
  client = harness.Mount();
  EXPECT_EQ(client->List(directory).size(), static_cast<size_t>(kNames));
  for (int i = 0; i < kNames; ++i) EXPECT_TRUE(client->Lookup(name(i), directory).ok()) << i;
}

// Entries that a listing has brought are still known when its caller comes to them, as far as there was room.
TEST_F(Memory, RemovingADirectoryThatDoesNotFitAsksForTheRestOnly) {
  constexpr int kNames = 1500;
  const Fid directory = c().Mkdir("d");
  for (int i = 0; i < kNames; ++i)
    EXPECT_TRUE(
        c().Await(c().fs().Mknod(c().caller, directory, "f" + std::to_string(i), S_IFREG | 0644, 0)).ok());
  MountAgain();
  EXPECT_TRUE(c().Lookup("d").ok());
  std::vector<std::string> names;  // in the order of the listing
  HandlePtr handle = c().Open(directory, O_RDONLY | O_DIRECTORY);
  for (uint64_t cookie = 0;;) {
    auto entries = c().Await(c().fs().Readdir(c().caller, handle, cookie, 100, true));
    ASSERT_TRUE(entries.ok()) << entries.status();
    if (entries->empty()) break;
    for (const DirEntry& entry : *entries) names.push_back(entry.name);
    cookie = entries->back().cookie;
  }
  ASSERT_EQ(names.size(), static_cast<size_t>(kNames));
  const auto fit = static_cast<int>(c().fs().Look().inodes);
  EXPECT_GT(fit, 300);
  EXPECT_LT(fit, 1000);
  c().requests.clear();
  for (const std::string& name : names) {
    EXPECT_TRUE(c().Lookup(name, directory).ok());
    EXPECT_TRUE(c().Await(c().fs().Unlink(c().caller, directory, name)).ok());
  }
  EXPECT_LE(c().requests["lookup"], kNames - fit + 20);
}

}  // namespace
}  // namespace nacre::client
