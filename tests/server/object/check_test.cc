#include "server/object/check.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "tests/common/await.h"

#include "tests/server/object/store_fixture.h"

namespace nacre::ost {
namespace {

constexpr ObjectId kA{9, 0}, kB{9, 1};

class CheckTest : public testing::Test {
 protected:
  void SetUp() override {
    data_ = RandomBytes(&f.random, 20 * kBlockSize);
    ASSERT_TRUE(f.Write(kA, 0, data_).ok());
    ASSERT_TRUE(f.Write(kB, 5000, data_.substr(0, 10000)).ok());
    ASSERT_TRUE(f.Run(f.store->Sync()).ok());
    ASSERT_TRUE(f.Run(f.store->Sync()).ok());
    f.store->Close();
  }

  CheckReport Check(bool repair = false) {
    CheckOptions options;
    options.verify_data = true;
    options.repair = repair;
    options.boot = boot_;
    options.on_object = [this](const CheckedObject& object) { listed_.push_back(object); };
    listed_.clear();
    auto report = f.Run(CheckOst({3, &f.kv, &f.disk, "memory"}, std::move(options)));
    EXPECT_TRUE(report.ok()) << report.status();
    return report.ok() ? *report : CheckReport{};
  }

  void ExpectProblem(CheckProblem::Kind kind, std::string_view part, size_t count = 1) {
    CheckReport report = Check();
    ASSERT_EQ(report.problems.size(), count) << (report.problems.empty() ? "" : report.problems[0].text);
    EXPECT_EQ(report.problems[0].kind, kind) << report.problems[0].text;
    EXPECT_NE(report.problems[0].text.find(part), std::string::npos) << report.problems[0].text;
    EXPECT_FALSE(report.problems[0].repaired);
  }

  void LeaveUnsyncedWithABadBlock() {
    ASSERT_TRUE(f.Reopen().ok());
    ASSERT_TRUE(f.Write(kA, 0, RandomBytes(&f.random, 4 * kBlockSize)).ok());
    ASSERT_TRUE(f.Write(kB, 15000, "acknowledged").ok());
    f.store->Close();
    f.disk.FlipBit(Load(kA).physical[2], 100);
  }

  void ExpectRepaired() {
    CheckReport report = Check(true);
    for (const CheckProblem& problem : report.problems) EXPECT_TRUE(problem.repaired) << problem.text;
    report = Check();
    EXPECT_TRUE(report.problems.empty()) << report.problems[0].text;
    Status opened = f.Reopen();
    EXPECT_TRUE(opened.ok()) << opened;
  }

  void Put(std::string key, std::string value) {
    KvBatch batch;
    batch.Put(std::move(key), std::move(value));
    ASSERT_TRUE(Await(f.kv.Commit(std::move(batch))).ok());
  }

  Chunk Load(const ObjectId& id) {
    Chunk chunk;
    EXPECT_TRUE(LoadChunk(&f.kv, id, 0, &chunk).ok());
    return chunk;
  }

  static StoreOptions StartedIn(std::string boot) {
    StoreOptions options;
    options.boot = std::move(boot);
    return options;
  }

  std::string boot_ = "this boot";
  StoreFixture f{4096, StartedIn(boot_)};
  std::string data_;
  std::vector<CheckedObject> listed_;
};

TEST_F(CheckTest, ASoundOst) {
  CheckReport report = Check();
  EXPECT_TRUE(report.problems.empty());
  EXPECT_EQ(report.objects, 2u);
  EXPECT_EQ(report.blocks, 23u);
  EXPECT_EQ(report.verified_blocks, 23u);
  ASSERT_EQ(listed_.size(), 2u);
  EXPECT_EQ(listed_[1].id, kB);
  EXPECT_EQ(listed_[1].size, 15000u);
  EXPECT_EQ(listed_[1].parent, (Fid{7, 1, 0}));
}

TEST_F(CheckTest, NothingHereOrAnotherVersion) {
  MemKv empty;
  EXPECT_EQ(ToErrno(f.Run(CheckOst({0, &empty, &f.disk, "memory"}, {})).status()), ENOENT);
  Superblock superblock = f.store->superblock();
  superblock.version = 9;
  Put(std::string(kSuperblockKey), Encode(superblock));
  EXPECT_TRUE(absl::IsFailedPrecondition(f.Run(CheckOst({0, &f.kv, &f.disk, "memory"}, {})).status()));
}

TEST_F(CheckTest, BadDataIsFoundAndLeftAlone) {
  f.disk.FlipBit(Load(kA).physical[7], 100);
  ExpectProblem(CheckProblem::Kind::kChecksum, "file [0x7:0x1:0x0] object 9.0 block 7");
  EXPECT_FALSE(Check(true).problems[0].repaired);
}

// A block of what the last process wrote and never synced has gone bad since then: after the end of the
// process alone that is no sign of a loss of power, and what was acknowledged later stays.
TEST_F(CheckTest, ARepairTakesNothingBackWhenOnlyTheProcessHasEnded) {
  LeaveUnsyncedWithABadBlock();
  EXPECT_EQ(Check(true).problem_count, 1u) << "the bad block";
  EXPECT_EQ(listed_.at(1).size, 15012u);
  ASSERT_TRUE(f.Reopen().ok());
  EXPECT_EQ(f.Read(kB, 15000, 12).value(), "acknowledged");
}

TEST_F(CheckTest, ARepairTakesBackWhatALossOfPowerHasTorn) {
  LeaveUnsyncedWithABadBlock();
  boot_ = "the next boot";
  EXPECT_EQ(Check(true).problem_count, 0u);
  EXPECT_EQ(listed_.at(1).size, 15000u);
  ASSERT_TRUE(f.Reopen().ok());
  EXPECT_EQ(f.Read(kA, 0, 4 * kBlockSize).value(), data_.substr(0, 4 * kBlockSize));
}

TEST_F(CheckTest, WrongAccounts) {
  ObjectRecord record = *f.store->Stat(kA).value();
  record.blocks += 3;
  Put(ObjectKey(kA), Encode(record));
  ExpectProblem(CheckProblem::Kind::kAccounts, "counts 23 blocks");
  ExpectRepaired();
}

TEST_F(CheckTest, ExtentsWithoutAnObject) {
  KvBatch batch;
  batch.Erase(ObjectKey(kA));
  ASSERT_TRUE(Await(f.kv.Commit(std::move(batch))).ok());
  ExpectProblem(CheckProblem::Kind::kOrphanExtent, "object 9.0 has 20 blocks");
  ExpectRepaired();
  EXPECT_EQ(f.Read(kA, 0, data_.size()).value(), data_);
}

TEST_F(CheckTest, MalformedRecords) {
  Put(ExtentKey(kA, 0), "junk");
  CheckReport report = Check();
  ASSERT_EQ(report.problems.size(), 2u) << "the record, and the object's accounts";
  EXPECT_EQ(report.problems[0].kind, CheckProblem::Kind::kMalformed);
  EXPECT_FALSE(f.Reopen().ok()) << "a server does not start on it";
  ExpectRepaired();
  Put(ObjectKey(kB), "junk");
  ExpectRepaired();
  EXPECT_EQ(f.Read(kB, 5000, 10000).value(), data_.substr(0, 10000));
}

TEST_F(CheckTest, ABlockUsedTwice) {
  Chunk chunk = Load(kB);
  chunk.physical[1] = Load(kA).physical[2];
  Put(ExtentKey(kB, 0), EncodeChunk(chunk));
  CheckReport report = Check(true);
  ASSERT_EQ(report.problems.size(), 2u);
  EXPECT_EQ(report.problems[0].kind, CheckProblem::Kind::kOverlap);
  EXPECT_TRUE(report.problems[0].repaired);
  EXPECT_EQ(report.problems[1].kind, CheckProblem::Kind::kChecksum);
  ASSERT_TRUE(f.Reopen().ok());
  EXPECT_TRUE(f.store->problems().List().empty());
  EXPECT_EQ(f.Read(kA, 0, data_.size()).value(), data_);
  EXPECT_EQ(ToErrno(f.Read(kB, 5000, 100).status()), EIO) << "bad data is an error, never wrong bytes";
}

TEST_F(CheckTest, DataBehindTheEnd) {
  ObjectRecord record = *f.store->Stat(kA).value();
  record.size = 10 * kBlockSize;
  Put(ObjectKey(kA), Encode(record));
  ExpectProblem(CheckProblem::Kind::kBeyondEnd, "block 10", 10);
  ExpectRepaired();
}

TEST_F(CheckTest, ABlockBeyondTheDevice) {
  Chunk chunk = Load(kA);
  chunk.physical[19] = 99999;
  Put(ExtentKey(kA, 0), EncodeChunk(chunk));
  ExpectProblem(CheckProblem::Kind::kOutside, "99999");
}

TEST_F(CheckTest, UndoRecordsAreCountedAndSettledByARepair) {
  ASSERT_TRUE(f.Reopen().ok());
  ASSERT_TRUE(f.Write(kA, 0, "new").ok());
  f.store->Close();
  EXPECT_EQ(Check().undo_records, 1u);
  EXPECT_TRUE(Check(true).problems.empty());
  EXPECT_EQ(Check().undo_records, 0u);
}

}  // namespace
}  // namespace nacre::ost
