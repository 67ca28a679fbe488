// Servers that lose power: what was acknowledged and not synced may be gone, and fsync says so. And an MDT
// that is full: what was accepted is not lost for that.
#include "client/inode.h"
#include "server/kv/mem_kv.h"
#include "tests/client/harness.h"

namespace nacre::client {
namespace {

class Losses : public testing::TestWithParam<bool> {
 protected:
  Losses() : harness_(MakeOptions(GetParam())), client_(harness_.Mount()) { harness_.world.RunFor(2s); }

  static HarnessOptions MakeOptions(bool caching) {
    HarnessOptions options;
    options.client.caching = caching;
    options.metadata.inline_limit = 0;
    options.osses = 1;
    options.osts_per_oss = 1;
    return options;
  }
  // Past the cache: acknowledged by the OST, not synced yet.
  HandlePtr WriteDirect(const std::string& name) {
    HandlePtr file = client_->Create(name, O_RDWR | O_DIRECT);
    EXPECT_TRUE(client_->Fsync(file).ok());
    client_->Write(file, 0, data_);
    harness_.world.RunFor(50ms);  // under the lease it is sent just behind the answer
    return file;
  }
  void Restart(int node, sim::Loss loss) {
    harness_.cluster.Crash(node, loss);
    harness_.cluster.Boot(node);
  }
  int oss() { return harness_.cluster.oss(0); }

  Harness harness_;
  std::unique_ptr<Mounted> client_;
  const std::string data_ = Pattern(1, 200'000);
};

INSTANTIATE_TEST_SUITE_P(, Losses, testing::Bool(),
                         [](const auto& info) { return info.param ? "WithLease" : "WithoutLease"; });

TEST_P(Losses, OfAnOstAreToldByFsyncOnceToEachHandle) {
  HandlePtr file = WriteDirect("f"), other = client_->OpenName("f");
  Restart(oss(), sim::Loss::kPower);
  EXPECT_THAT(client_->Fsync(file), HasErrno(EIO));
  EXPECT_THAT(client_->Fsync(other), HasErrno(EIO));
  EXPECT_TRUE(client_->Fsync(file).ok());
  client_->Write(file, 0, data_);
  EXPECT_TRUE(client_->Fsync(file).ok());
  EXPECT_EQ(client_->Read(file, 0, data_.size()), data_);
}

TEST_P(Losses, AreNoneWhenOnlyTheProcessEnds) {
  HandlePtr file = WriteDirect("f");
  Restart(oss(), sim::Loss::kProcess);
  EXPECT_TRUE(client_->Fsync(file).ok());
  EXPECT_EQ(client_->Read(file, 0, data_.size()), data_);
}

TEST_P(Losses, AreNoneOfWhatWasSynced) {
  HandlePtr file = WriteDirect("f");
  ASSERT_TRUE(client_->Fsync(file).ok());
  Restart(oss(), sim::Loss::kPower);
  EXPECT_TRUE(client_->Fsync(file).ok());
  EXPECT_EQ(client_->Read(file, 0, data_.size()), data_);
}

TEST_P(Losses, AreNoneAfterAnOrderlyEnd) {
  HandlePtr file = WriteDirect("f");
  ASSERT_TRUE(harness_.cluster.Shutdown(oss(), 10s));
  Restart(oss(), sim::Loss::kPower);  // the machine is switched off
  EXPECT_TRUE(client_->Fsync(file).ok());
  EXPECT_EQ(client_->Read(file, 0, data_.size()), data_);
}

TEST_P(Losses, AreForgottenByTheCache) {
  HandlePtr file = client_->Create("f");
  const std::string large = Pattern(2, 2 << 20);
  client_->Write(file, 0, large);
  harness_.world.RunFor(100ms);  // on its way, or there, but not synced
  Restart(oss(), sim::Loss::kPower);
  harness_.world.RunFor(10s);
  const std::string seen = client_->Read(file, 0, large.size());
  Status synced = client_->Fsync(file);
  auto second = harness_.Mount();
  EXPECT_EQ(second->Read(second->OpenName("f"), 0, large.size()), seen);
  EXPECT_TRUE(!synced.ok() || seen == large);
}

TEST_P(Losses, OfTheMdtAreToldByFsync) {
  HandlePtr file = WriteDirect("f"), untouched = WriteDirect("untouched");
  ASSERT_TRUE(client_->Fsync(file).ok());
  ASSERT_TRUE(client_->Fsync(untouched).ok());
  SetAttributes set;
  set.mode = 0600;
  ASSERT_TRUE(client_->Await(client_->fs().Setattr(client_->caller, file->inode->fid, set, file)).ok());
  Restart(harness_.cluster.mds(), sim::Loss::kPower);
  harness_.world.RunFor(5s);
  EXPECT_THAT(client_->Fsync(file), HasErrno(EIO));
  EXPECT_TRUE(client_->Fsync(file).ok());
  EXPECT_TRUE(client_->Fsync(untouched).ok());
}

TEST_P(Losses, OfAnotherMdsProcessAreNone) {
  HandlePtr file = WriteDirect("f");
  Restart(harness_.cluster.mds(), sim::Loss::kProcess);
  harness_.world.RunFor(5s);
  EXPECT_TRUE(client_->Fsync(file).ok());
}

// Changes that the MDS had made are lost with its power; those that had not reached it are sent again when it
// is back (docs/decisions/0022-metadata-write-behind.md). So the second change is there without the first,
// and fsync says that something is missing.
TEST(MdtLosesPower, MayTakeAChangeButNotOneThatWasStillOnItsWay) {
  Harness harness;
  auto client = harness.Mount();
  const Fid top = client->Mkdir("top");
  harness.world.RunFor(5s);  // all that is synced
  HandlePtr first = client->Create("first", O_RDWR, top);
  const uint64_t answered = client->fs().Look().early_answered;
  ASSERT_GT(answered, 0u);
  ASSERT_TRUE(harness.RunUntil([&] { return client->fs().Look().early_done >= answered; }, 100ms));
  harness.cluster.Crash(harness.cluster.mds(), sim::Loss::kPower);
  HandlePtr second = client->Create("second", O_RDWR, top);
  EXPECT_GT(client->fs().Look().early_answered, answered);
  harness.cluster.Boot(harness.cluster.mds());
  harness.world.RunFor(20s);
  EXPECT_THAT(client->Fsync(first), HasErrno(EIO));
  (void)client->Close(first);
  (void)client->Close(second);
  ASSERT_TRUE(client->Unmount().ok());
  EXPECT_THAT(harness.Mount()->List(top), testing::ElementsAre("second"));
}

// An open whose creation was refused at the restart has no handle: the next fsync says so, with an error that
// fsync(2) has.
TEST(MdtLosesPower, MayTakeADirectoryInWhichSomethingWasMadeSince) {
  Harness harness;
  auto client = harness.Mount();
  HandlePtr old = client->Create("old");
  ASSERT_TRUE(client->Fsync(old).ok());
  harness.world.RunFor(5s);
  const Fid lost = client->Mkdir("lost");
  const uint64_t answered = client->fs().Look().early_answered;
  ASSERT_TRUE(harness.RunUntil([&] { return client->fs().Look().early_done >= answered; }, 100ms));
  harness.cluster.Crash(harness.cluster.mds(), sim::Loss::kPower);
  (void)client->Close(client->Create("f", O_RDWR, lost));
  harness.cluster.Boot(harness.cluster.mds());
  harness.world.RunFor(20s);
  EXPECT_THAT(client->Fsync(old), HasErrno(EIO));
  EXPECT_TRUE(client->Fsync(old).ok());
}

// Under the lease bytes are held back while the MDT loses power: they are sent by the layout that the client
// has forgotten otherwise.
TEST(MdtLosesPower, UnderAClientThatHoldsBytesBack) {
  Harness harness;
  auto client = harness.Mount();
  HandlePtr file = client->Create("f");
  ASSERT_TRUE(client->Fsync(file).ok());
  const std::string data = Pattern(4, 400'000);
  client->Write(file, 0, data.substr(0, 300'000));
  ASSERT_TRUE(client->Fsync(file).ok());
  client->Write(file, 300'000, data.substr(300'000, 50'000));
  harness.cluster.Crash(harness.cluster.mds(), sim::Loss::kPower);
  harness.world.RunFor(6s);  // the bytes are sent; their size waits for the MDS
  client->Write(file, 350'000, data.substr(350'000));
  harness.world.RunFor(4s);  // and these wait for it
  harness.cluster.Boot(harness.cluster.mds());
  harness.world.RunFor(20s);
  EXPECT_EQ(client->Read(file, 0, data.size()), data);
  (void)client->Fsync(file);  // may say that something may have been lost
  EXPECT_TRUE(client->Fsync(file).ok());
  ASSERT_TRUE(client->Unmount().ok());
  client = harness.Mount();
  EXPECT_EQ(client->Read(client->OpenName("f"), 0, data.size()), data);
}

// The client must not go on to show what the MDT has lost, which differs by the seed: all clients read the
// same, and data that is written and synced from then on is there.
class MdtLosesPowerBySeed : public testing::TestWithParam<uint64_t> {
 protected:
  static HarnessOptions MakeOptions() {
    HarnessOptions options;
    options.seed = GetParam();
    return options;
  }
  void LosePower() {
    harness_.world.RunFor(20ms);  // what is pushed has been done, and not been synced
    harness_.cluster.Crash(harness_.cluster.mds(), sim::Loss::kPower);
    harness_.cluster.Boot(harness_.cluster.mds());
    harness_.world.RunFor(10s);
  }
  // Errors are told once; then it can be written again, and is there for whoever mounts next.
  void ExpectGoesOn(const HandlePtr& file, const std::string& name) {
    const std::string seen = client_->Read(file, 0, 1 << 20);
    EXPECT_EQ(client_->Stat(file->inode->fid).size(), seen.size());
    (void)client_->Fsync(file);
    const std::string more = Pattern(9, 100'000);
    client_->Write(file, seen.size(), more);
    EXPECT_TRUE(client_->Fsync(file).ok());
    auto other = harness_.Mount();
    EXPECT_TRUE(other->Read(other->OpenName(name), 0, 1 << 20) == seen + more) << seen.size();
  }

  Harness harness_{MakeOptions()};
  std::unique_ptr<Mounted> client_ = harness_.Mount();
};

INSTANTIATE_TEST_SUITE_P(, MdtLosesPowerBySeed, testing::Range<uint64_t>(1, 41));

TEST_P(MdtLosesPowerBySeed, AFileThatGotOtherObjects) {
  HandlePtr file = client_->Create("f");
  client_->Write(file, 0, Pattern(1, 200'000));
  ASSERT_TRUE(client_->Fsync(file).ok());
  client_->Truncate(file, 0);
  client_->Write(file, 0, Pattern(2, 300'000));
  LosePower();
  ExpectGoesOn(file, "f");
}

// Seed 1221000010 of OSTs with three members: its size was told early, of objects that the MDT then had lost.
TEST_P(MdtLosesPowerBySeed, AClosedFileThatHadJustGotObjects) {
  HandlePtr file = client_->Create("f");
  ASSERT_TRUE(client_->Fsync(file).ok());
  client_->Write(file, 0, Pattern(2, 300'000));
  HandlePtr other = client_->OpenName("f");
  EXPECT_TRUE(client_->Close(file).ok());
  LosePower();
  const Status told = client_->Fsync(other);
  EXPECT_TRUE(told.ok() || ToErrno(told) == EIO) << told;
  EXPECT_TRUE(client_->Fsync(other).ok());
}

TEST_P(MdtLosesPowerBySeed, ASmallFileThatWasCutWhileBytesWereHeldBack) {
  HandlePtr file = client_->Create("f");
  client_->Write(file, 0, Pattern(1, 5000));
  ASSERT_TRUE(client_->Fsync(file).ok());
  client_->Write(file, 4000, Pattern(2, 500));
  client_->Truncate(file, 9000);
  LosePower();
  ExpectGoesOn(file, "f");
}

TEST_P(MdtLosesPowerBySeed, AnOpenFileThatWasRemoved) {
  HandlePtr file = client_->Create("f");
  client_->Write(file, 0, Pattern(1, 200'000));
  ASSERT_TRUE(client_->Fsync(file).ok());
  ASSERT_TRUE(client_
                  ->Await([](Mounted* client) -> Task<Status> {
                    std::string name = "f";
                    co_return co_await client->fs().Unlink(client->caller, kRootFid, name);
                  }(client_.get()))
                  .ok());
  LosePower();
  (void)client_->Close(file);
  if (!client_->Lookup("f").ok()) return;  // the MDS had synced it
  ExpectGoesOn(client_->OpenName("f"), "f");
}

// A client whose write is refused because another one has emptied the file gives its objects up, but not
// before that is on the MDT's disk: else it would come back without them.
TEST_P(MdtLosesPowerBySeed, DoesNotBringBackAFileWithoutItsObjects) {
  HandlePtr file = client_->Create("f", O_RDWR | O_DIRECT);
  const std::string old = Pattern(1, 200'000);
  client_->Write(file, 0, old);
  auto other = harness_.Mount();
  ASSERT_TRUE(client_->Fsync(file).ok());
  client_->Write(file, 0, old.substr(0, 10));  // without the lease, and knows the file's objects
  ASSERT_TRUE(client_->Fsync(file).ok());
  harness_.world.RunFor(3s);
  other->Truncate(other->OpenName("f"), 0);
  client_->Write(file, 0, "new");
  harness_.world.RunFor(1ms);
  harness_.cluster.Crash(harness_.cluster.mds(), sim::Loss::kPower);
  harness_.world.RunFor(1s);
  harness_.cluster.Boot(harness_.cluster.mds());
  harness_.world.RunFor(10s);
  auto third = harness_.Mount();
  const std::string seen = third->Read(third->OpenName("f"), 0, 1 << 20);
  const bool restored = seen.size() == old.size();
  EXPECT_TRUE(!restored || seen.substr(3) == old.substr(3)) << "synced, and nobody has cut it";
}

// A write to two OSTs of which one answers late: what the other has lost meanwhile is not served from the
// cache.
TEST(OstLosesPower, WhileAnotherOstKeepsTheWriteWaiting) {
  HarnessOptions options;
  options.osts_per_oss = 1;
  options.client.write_behind = 1s;
  Harness harness(options);
  auto client = harness.Mount();
  ASSERT_TRUE(
      client->Await(client->fs().SetXattr(client->caller, kRootFid, "nacre.layout", "-c 2 -S 64K", 0)).ok());
  const int first = harness.cluster.oss(0), second = harness.cluster.oss(1);
  HandlePtr file = client->Create("f");
  const std::string data = Pattern(5, 256 << 10);
  client->Write(file, 0, std::string(data.size(), 'x'));
  ASSERT_TRUE(client->Fsync(file).ok());
  harness.cluster.Crash(second, sim::Loss::kProcess);
  client->Write(file, 0, data);
  harness.world.RunFor(5s);  // one OST has its part, the other is away
  harness.cluster.Crash(first, sim::Loss::kPower);
  harness.cluster.Boot(first);
  harness.world.RunFor(10s);
  harness.cluster.Boot(second);
  harness.world.RunFor(20s);
  const std::string seen = client->Read(file, 0, data.size());
  client->Kill();
  auto other = harness.Mount();
  EXPECT_TRUE(other->Read(other->OpenName("f"), 0, data.size()) == seen);
}

// An fsync syncs another client's data as well, in objects of which this client has not heard.
TEST(LossesOfOthers, AreNoneAfterAnFsync) {
  Harness harness;
  auto mine = harness.Mount();
  HandlePtr file = mine->Create("f");
  mine->Write(file, 0, "small");
  auto theirs = harness.Mount();
  const std::string large = Pattern(3, 300'000);
  theirs->Write(theirs->OpenName("f"), 0, large);
  ASSERT_TRUE(mine->Fsync(file).ok());
  for (int node : {harness.cluster.oss(0), harness.cluster.oss(1)}) {
    harness.cluster.Crash(node, sim::Loss::kPower);
    harness.cluster.Boot(node);
  }
  EXPECT_EQ(mine->Read(file, 0, large.size()), large);
}

// --- a full MDT ---

class FullMdt : public testing::Test {
 protected:
  FullMdt() : harness_(MakeOptions()), client_(harness_.Mount()) {}
  static HarnessOptions MakeOptions() {
    HarnessOptions options;
    options.metadata.promised_bytes = 100'000;
    return options;
  }
  void SetFull(bool full) {
    auto& store = dynamic_cast<MemKv&>(harness_.cluster.mdt());
    store.SetFree(full ? std::optional<uint64_t>(0) : std::nullopt);
    store.SetCommitHook([full](const KvBatch& batch) {
      return !full || batch.uses_reserve() ? OkStatus() : ErrnoError(ENOSPC, "full");
    });
  }
  void ExpectContent(const std::string& name, const std::string& data) {
    EXPECT_EQ(client_->Read(client_->OpenName(name), 0, 1 << 20), data) << name;
  }

  Harness harness_;
  std::unique_ptr<Mounted> client_;
};

// Nothing is promised, so the MDS is asked for each write to a small file. Changes that are answered early
// meanwhile must count that write.
TEST_F(FullMdt, ARenameDuringAWriteThatIsNotHeldBackIsWhatTheMdsMakesOfIt) {
  HarnessOptions options;
  options.metadata.promised_bytes = 0;
  Harness harness(options);
  std::unique_ptr<Mounted> client = harness.Mount();
  HandlePtr file = client->Create("f");
  std::optional<Status> renamed;
  client->before_reply = [&, once = false](const proto::MetadataRequest& request) mutable -> Task<Status> {
    if (once || !request.has_write_inline()) co_return OkStatus();
    once = true;
    Spawn(client->process()->executor(), client->fs().Rename(client->caller, kRootFid, "f", kRootFid, "g", 0),
          [&renamed](Status status) { renamed = std::move(status); });
    co_await client->process()->world().clock().Sleep(10ms);
    co_return OkStatus();
  };
  client->Write(file, 0, "some bytes");
  client->before_reply = nullptr;
  ASSERT_TRUE(harness.RunUntil([&] { return renamed.has_value(); }));
  EXPECT_TRUE(renamed->ok()) << *renamed;
  EXPECT_TRUE(client->Fsync(file).ok());
  EXPECT_EQ(client->Read(client->OpenName("g"), 0, 20), "some bytes");
}

TEST_F(FullMdt, TakesAFileThatHasOutgrownIt) {
  const std::string large = Pattern(3, 100'000);
  for (int i = 0; i < 16; ++i) {  // so that each OST has granted space
    HandlePtr file = client_->Create("other" + std::to_string(i));
    client_->Write(file, 0, large);
    ASSERT_TRUE(client_->Fsync(file).ok());
  }
  HandlePtr file = client_->Create("large");
  ASSERT_TRUE(client_->Fsync(file).ok());
  const Duration before = harness_.world.clock().Now();
  client_->Write(file, 0, large);
  EXPECT_EQ(harness_.world.clock().Now(), before) << "the MDS has heard of it already";
  SetFull(true);
  EXPECT_TRUE(client_->Fsync(file).ok());
  SetFull(false);
  ASSERT_TRUE(client_->Unmount().ok());
  client_ = harness_.Mount();
  ExpectContent("large", large);
}

TEST_F(FullMdt, TakesWhatWasAcceptedAndRefusesTheRestAtTheCall) {
  const std::string large = Pattern(1, 100'000), grown = Pattern(2, 200'000);
  HandlePtr small = client_->Create("small"), file = client_->Create("large");
  client_->Write(file, 0, large);
  ASSERT_TRUE(client_->Fsync(file).ok());
  client_->Write(small, 0, "accepted");
  client_->Write(file, 0, grown);
  SetFull(true);
  harness_.world.RunFor(100ms);  // for so long the MDS takes its last look at its disk for the truth
  EXPECT_TRUE(client_->Fsync(small).ok());
  EXPECT_TRUE(client_->Fsync(file).ok());
  EXPECT_THAT(client_->TryWrite(small, 0, "too late").status(), HasErrno(ENOSPC));
  EXPECT_EQ(client_->Read(small, 0, 100), "accepted");
  EXPECT_THAT(client_->TryWrite(file, 300'000, "too late").status(), HasErrno(ENOSPC));
  SetFull(false);
  client_->Write(small, 0, "room again");
  client_->Write(small, 4, "XX");
  EXPECT_TRUE(client_->Fsync(small).ok());
  ASSERT_TRUE(client_->Unmount().ok());
  client_ = harness_.Mount();
  ExpectContent("small", "roomXXgain");
  EXPECT_EQ(client_->Read(client_->OpenName("large"), 0, grown.size()), grown);
}

// The fsync tells the MDS of the time of both writes, and has the bytes of the first.
TEST_F(FullMdt, AnFsyncLeavesItsRoomToAWriteThatComesMeanwhile) {
  std::unique_ptr<Mounted> other = harness_.Mount();
  HandlePtr file = client_->Create("f");
  client_->Write(file, 0, Pattern(1, 200'000));
  ASSERT_TRUE(client_->Fsync(file).ok());
  client_->Write(file, 0, "first");
  std::optional<Status> synced;
  Spawn(client_->process()->executor(), client_->fs().Fsync(file, /*data_only=*/false),
        [&synced](Status status) { synced = std::move(status); });
  client_->Write(file, 100'000, "second");
  ASSERT_FALSE(synced.has_value());
  ASSERT_TRUE(harness_.RunUntil([&] { return synced.has_value(); }));
  ASSERT_TRUE(synced->ok()) << *synced;
  SetFull(true);
  harness_.world.RunFor(100ms);
  // Asks for the lease of the directory, so the bytes are sent, and the MDS is told what they change.
  EXPECT_EQ(other->Read(other->OpenName("f", O_RDONLY), 100'000, 6), "second");
  EXPECT_TRUE(client_->Fsync(file).ok());
}

TEST_F(FullMdt, NoMoreIsHeldBackThanWasPromised) {
  std::map<std::string, std::string> files;
  for (int i = 0; i < 100; ++i) {
    std::string name = absl::StrFormat("f%d", i);
    HandlePtr file = client_->Create(name);
    files[name] = Pattern(static_cast<uint64_t>(i), 8000);
    client_->Write(file, 0, files[name].substr(0, 3000));
    client_->Write(file, 3000, files[name].substr(3000));
    ASSERT_TRUE(client_->Close(file).ok());
  }
  SetFull(true);
  ASSERT_TRUE(client_->Unmount().ok());  // all of the rest is sent now
  SetFull(false);
  client_ = harness_.Mount();
  for (const auto& [name, data] : files) ExpectContent(name, data);
}

}  // namespace
}  // namespace nacre::client
