// Changes of names and attributes that are answered before the MDS has done them: what needs no waiting, what
// is known meanwhile, what waits for them, and what a crash leaves.
#include <linux/fs.h>

#include "client/inode.h"
#include "common/metrics.h"
#include "tests/client/harness.h"

namespace nacre::client {
namespace {

constexpr int kMds = 0;

class NamesBehind : public testing::Test {
 protected:
  NamesBehind() : client_(harness_.Mount()), top_(c().Mkdir("top")) { Settle(); }
  ~NamesBehind() override { EXPECT_EQ(GetCounter("client.refused_behind").Get(), refused_before_); }

  Mounted& c() { return *client_; }
  void Settle() {
    EXPECT_TRUE(harness_.RunUntil([&] { return c().Behind() == 0; }));
  }
  Status Unlink(const std::string& name, Fid parent) {
    return c().Await(c().fs().Unlink(c().caller, parent, name));
  }
  Status Rmdir(const std::string& name, Fid parent) {
    return c().Await(c().fs().Rmdir(c().caller, parent, name));
  }
  Status Rename(Fid from, const std::string& name, Fid to, const std::string& new_name) {
    return c().Await(c().fs().Rename(c().caller, from, name, to, new_name, 0));
  }
  StatusOr<Known> Set(Fid fid, const SetAttributes& set) {
    return c().Await(c().fs().Setattr(c().caller, fid, set, nullptr));
  }
  // Mounts again: the new mount knows only what the MDS has.
  void Remount() {
    ASSERT_TRUE(c().Unmount().ok());
    client_ = harness_.Mount();
  }
  void CrashClient() {
    c().Kill();
    client_ = harness_.Mount();
  }

  const int64_t refused_before_ = GetCounter("client.refused_behind").Get();
  Harness harness_;
  std::unique_ptr<Mounted> client_;
  Fid top_;
};

TEST_F(NamesBehind, NothingIsWaitedFor) {
  EXPECT_TRUE(harness_.AtOnce([&] {
    Fid directory = c().Mkdir("d", top_);
    for (int i = 0; i < 20; ++i) {
      const std::string name = "f" + std::to_string(i);
      HandlePtr file = c().Create(name, O_RDWR | O_EXCL, directory);
      c().Write(file, 0, name);
      EXPECT_TRUE(c().Close(file).ok());
      SetAttributes mode;
      mode.mode = 0600;
      EXPECT_TRUE(Set(file->inode->fid, mode).ok());
    }
    EXPECT_EQ(c().Stat(directory).size(), 20u);
    for (int i = 0; i < 10; ++i) EXPECT_TRUE(Unlink("f" + std::to_string(i), directory).ok());
    EXPECT_EQ(c().Stat(directory).size(), 10u);
    EXPECT_TRUE(Rename(directory, "f10", directory, "f11").ok());
    EXPECT_TRUE(Rename(directory, "f12", top_, "f12").ok());
    EXPECT_EQ(c().Stat(directory).size(), 8u);
    EXPECT_EQ(c().List(directory).size(), 8u);
    EXPECT_EQ(c().Stat(top_).nlink(), 3u);
  }));
  EXPECT_GT(c().Behind(), 0u);
}

TEST_F(NamesBehind, AnAnswerIsNotCurrentAfterTheNextChange) {
  const proto::Attr before = c().Stat(top_);
  EXPECT_TRUE(c().fs().IsCurrent(before));
  c().Mkdir("d", top_);
  EXPECT_FALSE(c().fs().IsCurrent(before));
  EXPECT_TRUE(c().fs().IsCurrent(c().Stat(top_)));
}

TEST_F(NamesBehind, ManyChangesAreFewRequests) {
  Settle();
  const int before = c().total();
  for (int i = 0; i < 200; ++i) EXPECT_TRUE(c().Close(c().Create(std::to_string(i), O_RDWR, top_)).ok());
  Settle();
  EXPECT_LE(c().total() - before, 5);
}

// Beside batches that are under way another one goes when there is enough for it: the more for each of them.
TEST_F(NamesBehind, SeveralBatchesAreUnderWay) {
  int under_way = 0, most = 0;
  uint64_t last = 0, batches = 0;
  c().before_request = [&](const proto::MetadataRequest& request) -> Task<void> {
    if (!request.has_batch()) co_return;
    EXPECT_EQ(request.batch().after(), under_way > 0 ? last : 0);
    EXPECT_GE(request.batch().requests_size(), under_way > 1 ? 64 * under_way : 1);
    last = request.batch().requests(request.batch().requests_size() - 1).sequence();
    most = std::max(most, ++under_way);
    // Delays every other batch, so that the one behind it overtakes it.
    if (++batches % 2 == 1) co_await harness_.world.clock().Sleep(20ms);
  };
  c().before_reply = [&](const proto::MetadataRequest& request) -> Task<Status> {
    if (!request.has_batch()) co_return OkStatus();
    if (batches % 3 == 1) co_await harness_.world.clock().Sleep(30ms);
    --under_way;
    co_return OkStatus();
  };
  for (int i = 0; i < 600; ++i) {
    const std::string name = std::to_string(i);
    EXPECT_TRUE(c().Close(c().Create(name, O_RDWR | O_EXCL, top_)).ok());
    if (i % 2 != 0) continue;
    EXPECT_TRUE(Unlink(name, top_).ok());
  }
  Settle();
  EXPECT_EQ(most, 4);
  c().before_request = nullptr;
  c().before_reply = nullptr;
  Remount();
  EXPECT_EQ(c().List(top_).size(), 300u);
}

// The MDS has in the end what was answered, times and change numbers included.
TEST_F(NamesBehind, TheMdsComesToTheSameAttributes) {
  Fid directory = c().Mkdir("d", top_);
  HandlePtr file = c().Create("f", O_RDWR, directory);
  ASSERT_TRUE(c().Await(c().fs().Symlink(c().caller, directory, "s", "target")).ok());
  ASSERT_TRUE(c().Await(c().fs().Mknod(c().caller, directory, "p", S_IFIFO | 0640, 0)).ok());
  SetAttributes set;
  set.mode = 0751;
  set.uid = 7;
  set.kill_suid = true;
  set.mtime = WallTime{77, 7};
  ASSERT_TRUE(Set(directory, set).ok());
  set.atime_now = true;
  ASSERT_TRUE(Set(file->inode->fid, set).ok());
  Fid sub = c().Mkdir("sub", directory);
  ASSERT_TRUE(Rmdir("sub", directory).ok());
  (void)sub;
  for (const char* name : {"a", "b", "e"}) ASSERT_TRUE(c().Close(c().Create(name, O_RDWR, directory)).ok());
  HandlePtr held_back = c().OpenName("b", O_RDWR, directory);
  c().Write(held_back, 0, "some bytes");
  ASSERT_TRUE(Rename(directory, "a", top_, "moved").ok());
  ASSERT_TRUE(Rename(directory, "b", directory, "c").ok());
  ASSERT_TRUE(Rename(top_, "moved", directory, "e").ok());
  c().Mkdir("m", directory);
  ASSERT_TRUE(Rename(directory, "m", directory, "n").ok());
  ASSERT_TRUE(c().Fsync(held_back).ok());
  ASSERT_TRUE(c().Close(held_back).ok());
  ASSERT_TRUE(c().Close(file).ok());
  std::map<std::string, std::string> here, there;
  auto note = [&](std::map<std::string, std::string>* out) {
    (*out)["."] = c().Stat(directory).DebugString();
    (*out)["top"] = c().Stat(top_).DebugString();
    for (const char* name : {"f", "s", "p", "c", "e", "n"})
      (*out)[name] = c().Lookup(name, directory)->attr.DebugString();
  };
  note(&here);
  Remount();
  note(&there);
  EXPECT_EQ(here, there);
}

// As a kernel says it: setuid bits and a capability are to go with the old owner. There are none.
TEST_F(NamesBehind, AnOwnerIsSetEarly) {
  SetAttributes set;
  set.kill_suid = true;
  HandlePtr file = c().Create("f", O_RDWR, top_);
  Settle();
  const int before = c().total();
  for (uint32_t uid = 1; uid <= 20; ++uid) {
    set.uid = set.gid = uid;
    ASSERT_TRUE(Set(file->inode->fid, set).ok());
  }
  Settle();
  EXPECT_LE(c().total() - before, 3);
  const std::string here = c().Stat(file->inode->fid).DebugString();
  EXPECT_EQ(c().Stat(file->inode->fid).uid(), 20u);
  const Fid fid = file->inode->fid;
  EXPECT_TRUE(c().Close(file).ok());
  Remount();
  EXPECT_EQ(c().Stat(fid).DebugString(), here);
}

// The MDS has no bytes of it, so giving it objects waits for no OST and may stand in the queue.
TEST_F(NamesBehind, ANewFileIsMovedOutInItsTurn) {
  const std::string content = Pattern(3, 100'000);
  HandlePtr file = c().Create("f", O_RDWR, top_);
  c().Write(file, 0, content);
  EXPECT_EQ(c().requests["move_out"], 0);
  ASSERT_TRUE(c().Close(file).ok());
  HandlePtr small = c().Create("small", O_RDWR, top_);
  c().Write(small, 0, content.substr(0, 100));
  ASSERT_TRUE(c().Fsync(small).ok());
  c().Write(small, 100, content.substr(100));
  EXPECT_EQ(c().requests["move_out"], 1);
  ASSERT_TRUE(c().Close(small).ok());
  Remount();
  for (const char* name : {"f", "small"}) {
    HandlePtr again = c().OpenName(name, O_RDONLY, top_);
    EXPECT_EQ(c().Read(again, 0, content.size() + 1), content) << name;
    EXPECT_TRUE(c().Close(again).ok());
  }
}

TEST_F(NamesBehind, ACapabilityGoesWithTheOwner) {
  const Fid fid = c().Create("f", O_RDWR, top_)->inode->fid;
  const std::string capability(
      "\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00", 20);
  ASSERT_TRUE(c().Await(c().fs().SetXattr(c().caller, fid, "security.capability", capability, 0)).ok());
  Settle();
  EXPECT_TRUE(c().Stat(fid).has_xattrs());
  SetAttributes set;
  set.uid = 7;
  ASSERT_TRUE(Set(fid, set).ok());
  EXPECT_FALSE(c().Stat(fid).has_xattrs());
  EXPECT_THAT(c().Await(c().fs().GetXattr(c().caller, fid, "security.capability")).status(),
              HasErrno(ENODATA));
}

TEST_F(NamesBehind, RulesOfDirectoriesAreKept) {
  SetAttributes set;
  set.mode = 02777;
  set.gid = 55;
  ASSERT_TRUE(Set(top_, set).ok());
  c().caller.uid = 1000;
  c().caller.gid = 1000;
  Fid inherits = c().Mkdir("inherits", top_);
  EXPECT_EQ(c().Stat(inherits).mode(), S_IFDIR | 02755u);
  EXPECT_EQ(c().Stat(inherits).gid(), 55u);
  EXPECT_EQ(c().Create("f", O_RDWR, inherits)->inode->attr.gid(), 55u);
  EXPECT_THAT(Rmdir("inherits", top_), HasErrno(ENOTEMPTY));
  EXPECT_THAT(Unlink("inherits", top_), HasErrno(EISDIR));
  EXPECT_THAT(Rmdir("f", inherits), HasErrno(ENOTDIR));
  EXPECT_THAT(Unlink("none", inherits), HasErrno(ENOENT));
  c().caller.uid = 1001;
  EXPECT_THAT(Unlink("f", inherits), HasErrno(EACCES));
  auto made = c().Await(c().fs().Mknod(c().caller, inherits, "g", S_IFREG | 0644, 0));
  EXPECT_THAT(made.status(), HasErrno(EACCES));
  c().caller.uid = 0;
  set.mode = 01777;
  ASSERT_TRUE(Set(inherits, set).ok());
  c().caller.uid = 1001;
  EXPECT_THAT(Unlink("f", inherits), HasErrno(EPERM));
  set = {};
  set.mode = 0777;
  EXPECT_THAT(Set(inherits, set).status(), HasErrno(EPERM));
}

TEST_F(NamesBehind, AnUnlinkedFileStaysOpen) {
  HandlePtr file = c().Create("f", O_RDWR, top_);
  c().Write(file, 0, "still here");
  ASSERT_TRUE(Unlink("f", top_).ok());
  EXPECT_THAT(c().Lookup("f", top_).status(), HasErrno(ENOENT));
  Settle();
  const std::string large = Pattern(1, 100'000);
  c().Write(file, 0, large);
  ASSERT_TRUE(c().Fsync(file).ok());
  EXPECT_EQ(c().Read(file, 0, 1 << 20), large);
  EXPECT_TRUE(c().Close(file).ok());
  c().Create("f", O_RDWR, top_);
  EXPECT_EQ(c().List(top_), std::vector<std::string>{"f"});
}

TEST_F(NamesBehind, QuestionsToTheMdsComeAfterThem) {
  for (int i = 0; i < 50; ++i) c().Create(std::to_string(i), O_RDWR, top_);
  EXPECT_EQ(c().List(top_).size(), 50u);
  HandlePtr file = c().Create("large", O_RDWR, top_);
  c().Write(file, 0, Pattern(1, 50'000));  // moves out
  ASSERT_TRUE(
      c().Await(c().fs().SetXattr(c().caller, c().Create("x", O_RDWR, top_)->inode->fid, "user.a", "b", 0))
          .ok());
  c().Create("old", O_RDWR, top_);
  ASSERT_TRUE(c().Await(c().fs().Rename(c().caller, top_, "old", top_, "new", 0)).ok());
  ASSERT_TRUE(c().Await(c().fs().Link(c().caller, file->inode->fid, top_, "linked")).ok());
  EXPECT_EQ(c().Stat(file->inode->fid).nlink(), 2u);
  EXPECT_EQ(c().List(top_).size(), 54u);
}

TEST_F(NamesBehind, FsyncedNamesSurviveTheLossOfPower) {
  HandlePtr file = c().Create("f", O_RDWR, top_);
  c().Write(file, 0, "kept");
  ASSERT_TRUE(c().Fsync(file).ok());
  c().Create("g", O_RDWR, top_);
  c().Kill();
  harness_.cluster.Crash(kMds, sim::Loss::kPower);
  harness_.cluster.Boot(kMds);
  ASSERT_TRUE(harness_.RunUntil([&] { return harness_.cluster.AllReady(); }));
  client_ = harness_.Mount();
  EXPECT_EQ(c().Read(c().OpenName("f", O_RDWR, top_), 0, 10), "kept");
}

// A crash of the client takes a suffix of what it had answered.
TEST_F(NamesBehind, ACrashOfTheClientLeavesAPrefix) {
  for (int round = 0; round < 20; ++round) {
    Fid directory = c().Mkdir("d" + std::to_string(round), top_);
    Settle();
    for (int i = 0; i < 100; ++i) {
      c().Create(std::to_string(1000 + i), O_RDWR, directory);
      if (i == 5 * round) harness_.world.RunFor(std::chrono::microseconds(50 * round));
    }
    CrashClient();
    std::vector<std::string> names = c().List(directory), prefix;
    for (size_t i = 0; i < names.size(); ++i) prefix.push_back(std::to_string(1000 + i));
    EXPECT_EQ(names, prefix);
  }
}

TEST_F(NamesBehind, ARestartOfTheMdsLosesNothing) {
  for (int i = 0; i < 100; ++i) c().Create(std::to_string(i), O_RDWR, top_);
  harness_.world.RunFor(std::chrono::microseconds(300));
  harness_.cluster.Crash(kMds, sim::Loss::kProcess);
  EXPECT_TRUE(harness_.AtOnce([&] {
    for (int i = 100; i < 200; ++i) c().Create(std::to_string(i), O_RDWR, top_);
  }));
  harness_.world.clock().At(5s, [&] { harness_.cluster.Boot(kMds); });
  for (int i = 200; i < 600; ++i) c().Create(std::to_string(i), O_RDWR, top_);  // waits for room
  EXPECT_EQ(c().List(top_).size(), 600u);
  Remount();
  EXPECT_EQ(c().List(top_).size(), 600u);
}

TEST_F(NamesBehind, LostStreamsRepeatNothing) {
  harness_.network.faults().break_one_in = 10;
  for (int i = 0; i < 200; ++i) {
    const std::string name = std::to_string(i);
    ASSERT_NE(c().Create(name, O_RDWR | O_EXCL, top_), nullptr);
    if (i % 3 != 0) continue;
    ASSERT_TRUE(Unlink(name, top_).ok());
    harness_.world.RunFor(1ms);
  }
  harness_.network.faults().break_one_in = 0;
  Remount();
  EXPECT_EQ(c().List(top_).size(), 133u);
}

TEST_F(NamesBehind, ASecondClientSeesThem) {
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(c().Close(c().Create(std::to_string(i), O_RDWR, top_)).ok());
  auto second = harness_.Mount();
  EXPECT_EQ(second->List(top_).size(), 100u);
  EXPECT_FALSE(harness_.AtOnce([&] { c().Create("now", O_RDWR, top_); }));
  EXPECT_TRUE(second->Lookup("now", top_).ok());
}

}  // namespace
}  // namespace nacre::client
