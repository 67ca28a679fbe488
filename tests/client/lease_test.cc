// A client is alone, and another one comes: what the first holds back, the second sees; what may be cached,
// and for how long.
#include "client/inode.h"
#include "tests/client/harness.h"

namespace nacre::client {
namespace {

class Lease : public testing::Test {
 protected:
  Lease() : a_(harness_.Mount()) {}

  // A directory that several wanted has no leases for a while.
  void EndPeace() { harness_.world.RunFor(harness_.options.metadata.peace + 1s); }

  Harness harness_;
  std::unique_ptr<Mounted> a_;
  std::unique_ptr<Mounted> b_;
};

TEST_F(Lease, TheSecondClientSeesWhatTheFirstHeldBack) {
  const std::string large = Pattern(1, 3 << 20);
  HandlePtr small = a_->Create("small");
  HandlePtr file = a_->Create("large");
  a_->Write(small, 0, "held back");
  a_->Write(file, 0, large);
  ASSERT_GT(a_->fs().Look().dirty_bytes, 0u);
  ASSERT_EQ(a_->requests["write_inline"], 0);

  b_ = harness_.Mount();
  EXPECT_EQ(a_->requests["write_inline"], 0) << "a mount alone takes nothing from others";
  EXPECT_EQ(b_->Read(b_->OpenName("small"), 0, 100), "held back");
  EXPECT_EQ(b_->Read(b_->OpenName("large"), 0, 4 << 20), large);
}

TEST_F(Lease, EachSeesTheOthersChangesAtOnce) {
  HandlePtr of_a = a_->Create("f");
  b_ = harness_.Mount();
  HandlePtr of_b = b_->OpenName("f");
  std::string model;
  for (int i = 0; i < 20; ++i) {
    std::string piece = Pattern(static_cast<uint64_t>(i), 3000);
    Mounted& writer = i % 2 == 0 ? *a_ : *b_;
    writer.Write(i % 2 == 0 ? of_a : of_b, model.size(), piece);
    model += piece;
    ASSERT_EQ(a_->Read(of_a, 0, 1 << 20), model);
    ASSERT_EQ(b_->Read(of_b, 0, 1 << 20), model);
    ASSERT_EQ(a_->Stat(of_a->inode->fid).size(), model.size());
    ASSERT_EQ(b_->Stat(of_a->inode->fid).size(), model.size());
  }
  b_->Truncate(of_b, 10);
  EXPECT_EQ(a_->Read(of_a, 0, 1 << 20), model.substr(0, 10));
  a_->Truncate(of_a, 0);
  b_->Write(of_b, 0, "new");
  EXPECT_EQ(a_->Read(of_a, 0, 1 << 20), "new");
  ASSERT_TRUE(a_->Await(a_->fs().Rename(a_->caller, kRootFid, "f", kRootFid, "g", 0)).ok());
  EXPECT_THAT(b_->Lookup("f").status(), HasErrno(ENOENT));
  EXPECT_TRUE(b_->Lookup("g").ok());
}

TEST_F(Lease, AppendsOfTwoClientsAreAllThere) {
  HandlePtr of_a = a_->Create("log", O_RDWR | O_APPEND);
  b_ = harness_.Mount();
  HandlePtr of_b = b_->OpenName("log", O_RDWR | O_APPEND);
  std::string model;
  for (int i = 0; i < 40; ++i) {
    std::string piece = Pattern(static_cast<uint64_t>(i), 1111);
    (i % 3 == 0 ? *a_ : *b_).Write(i % 3 == 0 ? of_a : of_b, 0, piece);
    model += piece;
  }
  EXPECT_EQ(a_->Read(of_a, 0, 1 << 20), model);
}

TEST_F(Lease, ComesBackToTheOneThatIsLeft) {
  b_ = harness_.Mount();
  HandlePtr file = a_->Create("f");
  EXPECT_EQ(b_->Read(b_->OpenName("f"), 0, 10), "");
  a_->Write(file, 0, "one");
  EXPECT_EQ(a_->requests["write_inline"], 1);
  ASSERT_TRUE(b_->Unmount().ok());
  EndPeace();
  a_->Write(file, 3, "two");  // the MDS says that nobody else is there
  a_->Write(file, 6, "three");
  EXPECT_EQ(a_->requests["write_inline"], 2);
  EXPECT_EQ(a_->Read(file, 0, 20), "onetwothree");
  b_ = harness_.Mount();
  EXPECT_EQ(b_->Read(b_->OpenName("f"), 0, 20), "onetwothree");
  EXPECT_EQ(a_->Read(file, 0, 20), "onetwothree");
}

TEST_F(Lease, FilesOpenAtTheRevocationSurviveTheOthersUnlink) {
  HandlePtr file = a_->Create("f");
  a_->Write(file, 0, "alive");
  HandlePtr orphan = a_->Create("orphan");
  a_->Write(orphan, 0, Pattern(2, 100'000));
  ASSERT_TRUE(a_->Await(a_->fs().Unlink(a_->caller, kRootFid, "orphan")).ok());
  b_ = harness_.Mount();
  ASSERT_TRUE(b_->Await(b_->fs().Unlink(b_->caller, kRootFid, "f")).ok());
  harness_.world.RunFor(10s);
  EXPECT_EQ(a_->Read(file, 0, 100), "alive");
  EXPECT_EQ(a_->Read(orphan, 0, 1 << 20), Pattern(2, 100'000));
  EXPECT_TRUE(a_->Close(file).ok());
  EXPECT_TRUE(a_->Close(orphan).ok());
}

// The kernel forgets before the lease goes, and operations go on while it does: its pages may wait for them.
TEST_F(Lease, TheKernelIsToldAndItsPromisesRunOut) {
  HandlePtr file = a_->Create("f");
  ASSERT_EQ(a_->fs().PagesFor(file), KernelPages::kNew);
  EXPECT_EQ(a_->fs().PagesFor(file), KernelPages::kKept);
  a_->Write(file, 0, "data");
  std::vector<Fid> told;
  bool read_meanwhile = false;
  Invalidation invalidation;
  invalidation.data_and_attributes = [&](Fid fid, uint64_t, uint64_t) -> Task<void> {
    told.push_back(fid);
    auto result = co_await a_->fs().Read(file, 0, 4);
    read_meanwhile = result.ok() && result->size == 4;
  };
  a_->fs().SetInvalidation(std::move(invalidation));
  harness_.world.RunFor(60s);  // the longer it is quiet, the more is promised
  const Duration promised = a_->Await(a_->fs().Getattr(a_->caller, file->inode->fid, nullptr))->until;
  EXPECT_EQ(a_->Left(promised), harness_.options.client.kernel_cache);
  const Duration before = harness_.world.clock().Now();
  b_ = harness_.Mount();
  HandlePtr of_b = b_->OpenName("f");
  EXPECT_LT(harness_.world.clock().Now() - before, 100ms) << "an open changes nothing that was promised";
  EXPECT_THAT(told, testing::Contains(file->inode->fid));
  EXPECT_TRUE(read_meanwhile);
  EXPECT_EQ(a_->Await(a_->fs().Getattr(a_->caller, file->inode->fid, nullptr))->until, Duration(0));
  EXPECT_EQ(a_->fs().PagesFor(file), KernelPages::kNone);
  b_->Write(of_b, 0, "more than that");
  EXPECT_GE(harness_.world.clock().Now(), promised);
}

// Client a's kernel keeps pages of a file, and client b is there, too.
class Pages : public Lease {
 protected:
  Pages() {
    file_ = a_->Create("f");
    a_->Write(file_, 0, "old");
    b_ = harness_.Mount();
    Invalidation invalidation;
    invalidation.data_and_attributes = [this](Fid fid, uint64_t, uint64_t) -> Task<void> {
      forgotten_.push_back(fid);
      co_await a_->process()->world().clock().Sleep(forget_takes_);
      forgetting_over_ = true;
    };
    a_->fs().SetInvalidation(std::move(invalidation));
  }
  Status Hold() { return a_->Await(a_->fs().HoldPages(file_, 0, 4096, client::PageUse::kFill)).status(); }

  HandlePtr file_;
  std::vector<Fid> forgotten_;
  Duration forget_takes_ = 50ms;
  bool forgetting_over_ = false;
};

TEST_F(Pages, AreForgottenBeforeAnothersChangeReturns) {
  HandlePtr of_b = b_->OpenName("f");
  auto changes = {
      std::function<void()>([&] { b_->Write(of_b, 0, "new"); }),
      std::function<void()>([&] { b_->Write(of_b, 0, Pattern(1, 100'000)); }),
      std::function<void()>([&] { b_->Write(of_b, 50'000, "changed in place"); }),
      std::function<void()>([&] { b_->Truncate(of_b, 5000); }),
      std::function<void()>([&] { EXPECT_TRUE(b_->Await(b_->fs().Fallocate(of_b, 0x3, 0, 4096)).ok()); }),
      std::function<void()>([&] { EXPECT_TRUE(b_->Close(b_->OpenName("f", O_RDWR | O_TRUNC)).ok()); }),
  };
  for (const auto& change : changes) {
    ASSERT_TRUE(Hold().ok());
    forgotten_.clear();
    forgetting_over_ = false;
    change();
    EXPECT_TRUE(forgetting_over_);
    EXPECT_THAT(forgotten_, testing::ElementsAre(file_->inode->fid));
  }
}

TEST_F(Pages, AreHeldWithOneRequestAndGoWithTheLastHandle) {
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(Hold().ok());
  EXPECT_EQ(a_->requests["acquire_lease"], 1);
  a_->Write(file_, 0, "own changes need no recall");
  EXPECT_THAT(forgotten_, testing::IsEmpty());
  ASSERT_TRUE(a_->Close(file_).ok());
  harness_.world.RunFor(1s);
  EXPECT_EQ(a_->requests["release_lease"], 1);
  b_->Write(b_->OpenName("f"), 0, "new");
  EXPECT_THAT(forgotten_, testing::IsEmpty());
}

TEST_F(Pages, AreForgottenAlsoAfterARestartOfTheMds) {
  ASSERT_TRUE(Hold().ok());
  HandlePtr of_b = b_->OpenName("f");
  harness_.cluster.Crash(harness_.cluster.mds(), sim::Loss::kProcess);
  harness_.cluster.Boot(harness_.cluster.mds());
  b_->Write(of_b, 0, "new");
  EXPECT_TRUE(forgetting_over_);
}

// A client that cannot be asked has forgotten the pages by itself when its lease runs out, and is evicted.
TEST_F(Pages, AreTakenFromAClientThatDoesNotAnswer) {
  ASSERT_TRUE(Hold().ok());
  harness_.network.Cut(100, 0);
  harness_.network.Cut(0, 100);
  HandlePtr of_b = b_->OpenName("f");
  b_->Write(of_b, 0, "new");
  EXPECT_TRUE(forgetting_over_);
  harness_.network.Heal();
  harness_.world.RunFor(60s);
  EXPECT_THAT(Hold(), HasErrno(EIO));
}

// Two clients' kernels write the same mapping back while each has to forget it: neither write waits for the
// other's.
TEST_F(Pages, WritingBackWaitsForNobody) {
  ASSERT_TRUE(Hold().ok());
  forget_takes_ = 1h;
  HandlePtr of_b = b_->OpenName("f");
  const std::string data = "new";
  std::span<const std::byte> piece = std::as_bytes(std::span(data));
  auto written = b_->Await(b_->fs().WriteBack(of_b, 0, std::span(&piece, 1)));
  EXPECT_TRUE(written.ok()) << written.status();
  EXPECT_FALSE(forgetting_over_);
  harness_.world.RunFor(1s);
  EXPECT_THAT(forgotten_, testing::ElementsAre(file_->inode->fid));  // but it is asked for
}

TEST_F(Lease, WhatTheKernelKeepsIsKnownByLease) {
  HandlePtr file = a_->Create("f");
  EXPECT_EQ(a_->fs().PagesFor(file), KernelPages::kNew);
  EXPECT_EQ(a_->fs().PagesFor(a_->OpenName("f")), KernelPages::kKept);
  EXPECT_EQ(a_->fs().PagesFor(a_->OpenName("f", O_RDWR | O_APPEND)), KernelPages::kNone);
  EXPECT_EQ(a_->fs().PagesFor(a_->OpenName("f", O_RDWR | O_DIRECT)), KernelPages::kNone);
  b_ = harness_.Mount();
  (void)b_->OpenName("f");
  EXPECT_EQ(a_->fs().PagesFor(a_->OpenName("f")), KernelPages::kNone);
  ASSERT_TRUE(b_->Unmount().ok());
  EndPeace();
  EXPECT_EQ(a_->fs().PagesFor(a_->OpenName("f")), KernelPages::kNew);  // somebody was here meanwhile
}

// A mapping written back while the lease goes, and writers that never pause.
TEST_F(Lease, WritersKeepWritingWhileItGoesAndComes) {
  HandlePtr file = a_->Create("f");
  std::string model(200'000, '\0');
  bool stop = false, stopped = false;
  auto writer = [](Mounted* client, HandlePtr handle, std::string* bytes, bool* stop_now,
                   bool* done) -> Task<void> {
    SeededRandom random(5);
    while (!*stop_now) {
      uint64_t offset = random.Below(bytes->size() - 5000);
      std::string data = Pattern(random.Next(), 1 + random.Below(5000));
      bytes->replace(offset, data.size(), data);
      std::span<const std::byte> piece = std::as_bytes(std::span(data.data(), data.size()));
      auto written = co_await client->fs().Write(handle, offset, std::span(&piece, 1));
      EXPECT_TRUE(written.ok()) << written.status();
      co_await client->process()->world().clock().Sleep(3ms);
    }
    *done = true;
  };
  a_->Truncate(file, model.size());
  Spawn(a_->process()->executor(), writer(a_.get(), file, &model, &stop, &stopped));
  for (int round = 0; round < 3; ++round) {
    b_ = harness_.Mount();
    harness_.world.RunFor(200ms);
    ASSERT_TRUE(b_->Unmount().ok());
    harness_.world.RunFor(200ms);
  }
  stop = true;
  ASSERT_TRUE(harness_.RunUntil([&] { return stopped; }));
  EXPECT_EQ(a_->Read(file, 0, 1 << 20), model);
  b_ = harness_.Mount();
  EXPECT_EQ(b_->Read(b_->OpenName("f"), 0, 1 << 20), model);
}

TEST_F(Lease, AClientThatDoesNotAnswerIsEvictedAndGoesOnWithANewSession) {
  HandlePtr file = a_->Create("f");
  a_->Write(file, 0, "lost");
  ASSERT_TRUE(a_->Fsync(file).ok());
  harness_.network.Cut(100, 0);
  harness_.network.Cut(0, 100);
  b_ = harness_.Mount();
  HandlePtr of_b = b_->OpenName("f");  // waits for the eviction
  b_->Write(of_b, 0, "done");
  harness_.network.Heal();
  harness_.world.RunFor(60s);
  auto stale = a_->Await(a_->fs().Read(file, 0, 10));
  EXPECT_THAT(stale.status(), HasErrno(EIO));
  EXPECT_THAT(a_->TryWrite(file, 0, "no").status(), HasErrno(EIO));
  (void)a_->Close(file);  // whatever it says: the test hangs if it does
  EXPECT_EQ(a_->Read(a_->OpenName("f"), 0, 10), "done");
}

// Data that was lost by an eviction must not get in the way of writes that follow.
TEST_F(Lease, AfterAnEvictionWriteBehindGoesOn) {
  HandlePtr file = a_->Create("f");
  a_->Write(file, 0, "lost");
  harness_.network.Cut(100, 0);
  harness_.network.Cut(0, 100);
  b_ = harness_.Mount();
  (void)b_->OpenName("f");  // waits for the eviction
  harness_.network.Heal();
  harness_.world.RunFor(60s);
  EXPECT_THAT(a_->TryWrite(file, 0, "no").status(), HasErrno(EIO));
  ASSERT_TRUE(b_->Unmount().ok());
  EndPeace();
  HandlePtr again = a_->OpenName("f");
  a_->Write(again, 0, "new");
  EXPECT_EQ(a_->requests["write_inline"], 0);
  b_ = harness_.Mount();
  EXPECT_EQ(b_->Read(b_->OpenName("f"), 0, 10), "new");
}

}  // namespace
}  // namespace nacre::client
