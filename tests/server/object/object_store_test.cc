#include "server/object/object_store.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "tests/common/await.h"

#include "tests/server/object/store_fixture.h"

namespace nacre::ost {
namespace {

constexpr ObjectId kObject{9, 0};

TEST(ObjectStore, ReadsWhatWasWritten) {
  StoreFixture f;
  std::string data = RandomBytes(&f.random, 10000);
  EXPECT_EQ(f.Write(kObject, 100, data).value(), 3);
  EXPECT_EQ(f.Read(kObject, 100, 10000).value(), data);
  EXPECT_EQ(f.Read(kObject, 5000, 100).value(), data.substr(4900, 100));
  EXPECT_EQ(f.Read(kObject, 0, 200).value(), std::string(100, '\0') + data.substr(0, 100));
  EXPECT_EQ(f.Read(kObject, 10000, 1 << 20).value(), data.substr(9900));
  EXPECT_EQ(f.Read(kObject, 10100, 10).value(), "");
  auto record = f.store->Stat(kObject).value();
  ASSERT_TRUE(record.has_value());
  EXPECT_EQ(record->size, 10100u);
  EXPECT_EQ(record->blocks, 3u);
  EXPECT_EQ(record->parent, (Fid{7, 1, 0}));
}

TEST(ObjectStore, LargeRangesAcrossPieces) {
  StoreFixture f;
  std::string data = RandomBytes(&f.random, (3 << 20) + 777);
  ASSERT_TRUE(f.Write(kObject, 333, data).ok());
  EXPECT_EQ(f.Read(kObject, 333, data.size()).value(), data);
  ASSERT_TRUE(f.Reopen().ok());
  EXPECT_EQ(f.Read(kObject, 333, data.size()).value(), data);
  EXPECT_EQ(f.pool->pinned_pages(), 0u);
}

// Ranges that are scattered in the object lie together on the disk and become visible as one change.
TEST(ObjectStore, ScatteredRangesAreOneChange) {
  StoreFixture f;
  std::string whole = RandomBytes(&f.random, 300 * kBlockSize);
  ASSERT_TRUE(f.Write(kObject, 0, whole).ok());
  const uint64_t version = f.store->Stat(kObject).value()->version;
  const std::vector<ByteRange> ranges = {{3 * kBlockSize + 100, 2 * kBlockSize - 100},
                                         {70 * kBlockSize, kBlockSize},
                                         {71 * kBlockSize, 0},
                                         {140 * kBlockSize, 3 * kBlockSize},
                                         {320 * kBlockSize, kBlockSize + 7}};
  std::string data, expected = whole;
  expected.resize(321 * kBlockSize + 7);
  for (const ByteRange& range : ranges) {
    std::string piece = RandomBytes(&f.random, range.length);
    expected.replace(range.offset, range.length, piece);
    data += piece;
  }
  std::vector<uint64_t> written;  // blocks of each device write
  f.disk.SetFaultHook([&](MemBlockStore::Operation operation, uint64_t, uint64_t count) {
    if (operation == MemBlockStore::Operation::kWrite) written.push_back(count);
    return OkStatus();
  });
  EXPECT_EQ(f.WriteScattered(kObject, ranges, data).value(), 2) << "two blocks are new, the others replaced";
  EXPECT_EQ(written, std::vector<uint64_t>{8});
  EXPECT_EQ(f.store->Stat(kObject).value()->version, version + 1);
  EXPECT_EQ(f.Read(kObject, 0, 400 * kBlockSize).value(), expected);
  ASSERT_TRUE(f.Reopen().ok());
  EXPECT_EQ(f.Read(kObject, 0, 400 * kBlockSize).value(), expected);
}

TEST(ObjectStore, ScatteredRangesMustAscendByWholeBlocks) {
  StoreFixture f;
  const std::string data(2 * kBlockSize, 'x');
  EXPECT_EQ(ToErrno(f.WriteScattered(kObject, {{kBlockSize, kBlockSize}, {0, kBlockSize}}, data).status()),
            EINVAL);
  EXPECT_EQ(ToErrno(f.WriteScattered(kObject, {{0, kBlockSize}, {0, kBlockSize}}, data).status()), EINVAL);
  EXPECT_EQ(ToErrno(f.WriteScattered(kObject, {{0, 100}, {kBlockSize, 100}}, data.substr(0, 200)).status()),
            EINVAL);
  EXPECT_EQ(ToErrno(f.WriteScattered(kObject, {{0, kBlockSize}, {kBlockSize + 1, 9}},
                                     data.substr(0, kBlockSize + 9))
                        .status()),
            EINVAL);
  EXPECT_FALSE(f.store->Stat(kObject).value().has_value());
}

TEST(ObjectStore, MissingObjectsReadAsNothing) {
  StoreFixture f;
  EXPECT_EQ(f.Read(kObject, 0, 100).value(), "");
  EXPECT_FALSE(f.store->Stat(kObject).value().has_value());
  EXPECT_EQ(f.Run(f.store->Destroy(kObject)).value(), 0);
  EXPECT_EQ(f.Run(f.store->Truncate(kObject, 5)).value(), 0);
  EXPECT_EQ(f.Run(f.store->Punch(kObject, 5, 5)).value(), 0);
}

TEST(ObjectStore, SparseObjects) {
  StoreFixture f;
  EXPECT_EQ(f.Write(kObject, uint64_t{64} << 30, "end").value(), 1);
  EXPECT_EQ(f.Write(kObject, 8192, "mid").value(), 1);
  EXPECT_EQ(f.Read(kObject, 0, 16384).value(), std::string(8192, '\0') + "mid" + std::string(8189, '\0'));
  EXPECT_EQ(f.Run(f.store->Seek(kObject, 0, false)).value(), 8192u);
  EXPECT_EQ(f.Run(f.store->Seek(kObject, 0, true)).value(), 0u);
  EXPECT_EQ(f.Run(f.store->Seek(kObject, 8200, true)).value(), 12288u);
  EXPECT_EQ(f.Run(f.store->Seek(kObject, 12288, false)).value(), uint64_t{64} << 30);
  EXPECT_EQ(f.Run(f.store->Seek(kObject, (uint64_t{64} << 30) + 1, true)).value(), (uint64_t{64} << 30) + 3);
  EXPECT_FALSE(f.Run(f.store->Seek(kObject, (uint64_t{64} << 30) + 3, false)).value().has_value());
}

TEST(ObjectStore, TruncateCutsAndLeavesZeros) {
  StoreFixture f;
  std::string data = RandomBytes(&f.random, 20000);
  ASSERT_TRUE(f.Write(kObject, 0, data).ok());
  EXPECT_EQ(f.Run(f.store->Truncate(kObject, 5000)).value(), -3);
  EXPECT_EQ(f.Read(kObject, 0, 30000).value(), data.substr(0, 5000));
  ASSERT_TRUE(f.Write(kObject, 9000, "x").ok());
  EXPECT_EQ(f.Read(kObject, 0, 30000).value(), data.substr(0, 5000) + std::string(4000, '\0') + "x");
  EXPECT_EQ(f.Run(f.store->Truncate(kObject, 0)).value(), -3);
  EXPECT_EQ(f.store->Stat(kObject).value()->size, 0u);
}

TEST(ObjectStore, PunchMakesZeros) {
  StoreFixture f;
  std::string data = RandomBytes(&f.random, 40960);
  ASSERT_TRUE(f.Write(kObject, 0, data).ok());
  EXPECT_EQ(f.Run(f.store->Punch(kObject, 100, 50)).value(), 0);
  std::fill_n(data.begin() + 100, 50, '\0');
  EXPECT_EQ(f.Run(f.store->Punch(kObject, 5000, 20000)).value(), -4);
  std::fill_n(data.begin() + 5000, 20000, '\0');
  EXPECT_EQ(f.Read(kObject, 0, 40960).value(), data);
  EXPECT_EQ(f.Run(f.store->Punch(kObject, 30000, 1 << 20)).value(), -2);
  std::fill(data.begin() + 30000, data.end(), '\0');
  EXPECT_EQ(f.Read(kObject, 0, 50000).value(), data);
}

TEST(ObjectStore, PreallocatedSpaceReadsAsZerosAndTakesWritesOnAFullOst) {
  StoreFixture f(1000);
  EXPECT_EQ(f.Run(f.store->Preallocate(kObject, Fid{7, 1, 0}, 0, 100 * kBlockSize)).value(), 100);
  EXPECT_EQ(f.store->Stat(kObject).value()->size, 0u);
  StatusOr<int64_t> filled = 0;
  for (uint64_t i = 0; filled.ok(); ++i)
    filled = f.Write({10, 0}, i * kBlockSize, std::string(kBlockSize, 'f'));
  EXPECT_EQ(ToErrno(filled.status()), ENOSPC) << filled.status();
  for (uint64_t i = 0; i < 100; ++i)
    ASSERT_TRUE(f.Write(kObject, i * kBlockSize, std::string(100, 'x')).ok()) << i;
  EXPECT_EQ(f.Read(kObject, 5 * kBlockSize, 200).value(), std::string(100, 'x') + std::string(100, '\0'));
  EXPECT_EQ(f.store->Stat(kObject).value()->blocks, 100u);
  EXPECT_EQ(f.store->Stat(kObject).value()->unwritten, 0u);
}

TEST(ObjectStore, AFullOstSaysSoAndDeletingMakesRoomAtOnce) {
  StoreFixture f(1000);
  StatusOr<int64_t> filled = 0;
  uint64_t written = 0;
  for (; filled.ok(); ++written)
    filled = f.Write(kObject, written * kBlockSize, std::string(kBlockSize, 'f'));
  EXPECT_EQ(ToErrno(filled.status()), ENOSPC);
  EXPECT_EQ(written - 1, 990u);  // one percent is kept for overwriting
  for (uint64_t i = 0; i < 200; ++i) {
    ASSERT_TRUE(f.Write(kObject, i * kBlockSize, std::string(kBlockSize, 'g')).ok())
        << "overwriting block " << i;
  }
  ASSERT_TRUE(f.Run(f.store->Destroy(kObject)).ok());
  EXPECT_EQ(f.store->GetSpace().free_bytes, 1000 * kBlockSize);
  EXPECT_TRUE(f.Write({10, 0}, 0, std::string(900 * kBlockSize, 'h')).ok());
}

TEST(ObjectStore, TheDiskBelowMayBeFullFirst) {
  MemBlockStoreOptions disk;
  disk.available_blocks = 3 * kGroupBlocks;
  StoreFixture f(10 * kGroupBlocks, {}, disk);
  EXPECT_EQ(f.store->GetSpace().free_bytes, 3 * kGroupBlocks * kBlockSize);
  StatusOr<int64_t> result = f.Run(f.store->Preallocate(kObject, {}, 0, 4 * kGroupBlocks * kBlockSize));
  EXPECT_EQ(ToErrno(result.status()), ENOSPC) << result.status();
  EXPECT_NE(result.status().message().find("disk in memory"), absl::string_view::npos) << result.status();
  EXPECT_TRUE(f.Write({10, 0}, 0, "x").ok());
}

TEST(ObjectStore, ABadBlockIsAnErrorWithItsPlaceAndNothingElseSuffers) {
  StoreFixture f;
  std::string data = RandomBytes(&f.random, 10 * kBlockSize);
  ASSERT_TRUE(f.Write(kObject, 0, data).ok());
  Chunk chunk;
  ASSERT_TRUE(LoadChunk(&f.kv, kObject, 0, &chunk).ok());
  f.disk.FlipBit(chunk.physical[4], 77);
  ASSERT_TRUE(f.Run(f.store->Sync()).ok());
  ASSERT_TRUE(f.Reopen().ok());
  Status status = f.Read(kObject, 3 * kBlockSize, 2 * kBlockSize).status();
  EXPECT_EQ(ToErrno(status), EIO);
  for (const char* part : {"[0x7:0x1:0x0]", "9.0", "block 4"}) {
    EXPECT_NE(status.message().find(part), absl::string_view::npos) << status;
  }
  EXPECT_EQ(f.store->problems().List().size(), 1u);
  EXPECT_EQ(f.Read(kObject, 0, 4 * kBlockSize).value(), data.substr(0, 4 * kBlockSize));
  EXPECT_EQ(f.Read(kObject, 5 * kBlockSize, 5 * kBlockSize).value(), data.substr(5 * kBlockSize));
  EXPECT_EQ(ToErrno(f.Write(kObject, 4 * kBlockSize + 5, "x").status()), EIO);
  EXPECT_TRUE(f.Write(kObject, 4 * kBlockSize, std::string(kBlockSize, 'n')).ok());
  EXPECT_EQ(f.Read(kObject, 4 * kBlockSize, 1).value(), "n");
}

// The data of what was committed are there after the end of a process: a block that does not match is a bad
// one. The writes behind it were acknowledged, and nobody is told of a loss.
TEST(ObjectStore, ABadBlockTakesNothingBackWhenOnlyTheProcessHasEnded) {
  StoreOptions options;
  options.boot = "this boot";
  StoreFixture f(4096, options);
  const std::string data = RandomBytes(&f.random, 10 * kBlockSize);
  ASSERT_TRUE(f.Write(kObject, 0, data).ok());
  ASSERT_TRUE(f.Write({10, 0}, 0, "acknowledged").ok());
  Chunk chunk;
  ASSERT_TRUE(LoadChunk(&f.kv, kObject, 0, &chunk).ok());
  f.disk.FlipBit(chunk.physical[4], 77);
  ASSERT_TRUE(f.Reopen().ok());
  EXPECT_EQ(f.store->losses(), 0u);
  EXPECT_EQ(f.Read({10, 0}, 0, 12).value(), "acknowledged");
  EXPECT_EQ(f.Read(kObject, 0, 4 * kBlockSize).value(), data.substr(0, 4 * kBlockSize));
  EXPECT_EQ(ToErrno(f.Read(kObject, 4 * kBlockSize, 1).status()), EIO);
}

TEST(ObjectStore, DamageOnTheWayIsNoticed) {
  StoreFixture f;
  WriteArgs args{kObject, {{0, 5}}, {}, {0x12345678}, nullptr};
  StringSource source("hello");
  Allotment memory = f.Admit(5);
  EXPECT_EQ(ToErrno(f.Run(f.store->Write(args, &source, &memory)).status()), EIO);
  EXPECT_FALSE(f.store->Stat(kObject).value().has_value());
  EXPECT_EQ(f.store->space().allocator().free_blocks(), 4096u);
}

TEST(ObjectStore, ArgumentsAreChecked) {
  StoreFixture f;
  WriteArgs wrong_count{kObject, {{0, 5}}, {}, {}, nullptr};
  StringSource source("hello");
  Allotment memory = f.Admit(5);
  EXPECT_EQ(ToErrno(f.Run(f.store->Write(wrong_count, &source, &memory)).status()), EINVAL);
  WriteArgs too_far{kObject, {{~uint64_t{0} - 2, 5}}, {}, {1}, nullptr};
  EXPECT_EQ(ToErrno(f.Run(f.store->Write(too_far, &source, &memory)).status()), EFBIG);
  EXPECT_EQ(ToErrno(f.Run(f.store->Truncate(kObject, ~uint64_t{0})).status()), EFBIG);
  EXPECT_EQ(ToErrno(f.Read(kObject, ~uint64_t{0}, 1).status()), EFBIG);
  EXPECT_EQ(ToErrno(f.Run(f.store->Punch(kObject, 1, ~uint64_t{0})).status()), EFBIG);
}

TEST(ObjectStore, SurvivesARestart) {
  StoreFixture f;
  std::string data = RandomBytes(&f.random, 100000);
  ASSERT_TRUE(f.Write(kObject, 0, data).ok());
  ASSERT_TRUE(f.Write({9, 1}, 4096, "y").ok());
  std::string uuid = f.store->superblock().uuid;
  uint64_t free = f.store->space().allocator().free_blocks();
  ASSERT_TRUE(f.Reopen().ok());
  EXPECT_EQ(f.store->superblock().uuid, uuid);
  EXPECT_EQ(f.Read(kObject, 0, 100000).value(), data);
  EXPECT_EQ(f.store->GetSpace().objects, 2u);
  EXPECT_EQ(f.store->space().allocator().free_blocks(), free);
  auto listed = f.store->List(std::nullopt, 10).value();
  ASSERT_EQ(listed.size(), 2u);
  EXPECT_EQ(listed[1].id, (ObjectId{9, 1}));
  EXPECT_EQ(f.store->List(ObjectId{9, 0}, 10).value().size(), 1u);
}

TEST(ObjectStore, AnotherVersionOrIndexIsRefused) {
  StoreFixture f;
  Superblock superblock = f.store->superblock();
  f.store->Close();
  superblock.version = 99;
  KvBatch batch;
  batch.Put(std::string(kSuperblockKey), Encode(superblock));
  ASSERT_TRUE(Await(f.kv.Commit(std::move(batch))).ok());
  Status status = f.Reopen();
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_NE(status.message().find("99"), absl::string_view::npos) << status;
  superblock.version = kFormatVersion;
  superblock.index = 5;
  KvBatch again;
  again.Put(std::string(kSuperblockKey), Encode(superblock));
  ASSERT_TRUE(Await(f.kv.Commit(std::move(again))).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(f.Reopen()));
}

// One that knows no answers; what it has is as it was.
TEST(ObjectStore, Version1BecomesVersion2AtAStart) {
  StoreFixture f;
  ASSERT_TRUE(f.Write(kObject, 0, "hello").ok());
  Superblock superblock = f.store->superblock();
  EXPECT_EQ(superblock.version, kFormatVersion);
  f.store->Close();
  superblock.version = kFormatWithoutAnswers;
  KvBatch batch;
  batch.Put(std::string(kSuperblockKey), Encode(superblock));
  ASSERT_TRUE(Await(f.kv.Commit(std::move(batch))).ok());
  ASSERT_TRUE(f.Reopen().ok());
  EXPECT_EQ(ParseSuperblock(*f.kv.Get(kSuperblockKey))->version, kFormatVersion);
  EXPECT_EQ(f.Read(kObject, 0, 10).value(), "hello");
}

TEST(ObjectStore, DestroyOfALargeObjectGoesInSteps) {
  StoreFixture f(40000);
  for (uint64_t i = 0; i < 600; ++i) ASSERT_TRUE(f.Write(kObject, i * kChunkBlocks * kBlockSize, "x").ok());
  uint64_t before = f.store->Stat(kObject).value()->blocks;
  EXPECT_EQ(before, 600u);
  EXPECT_EQ(f.Run(f.store->Truncate(kObject, 300 * kChunkBlocks * kBlockSize)).value(), -300);
  EXPECT_EQ(f.Run(f.store->Destroy(kObject)).value(), -300);
  EXPECT_FALSE(f.store->Stat(kObject).value().has_value());
  ASSERT_TRUE(f.Run(f.store->Sync()).ok());
  ASSERT_TRUE(f.Run(f.store->Sync()).ok());
  EXPECT_EQ(f.store->space().allocator().free_blocks(), 40000u);
  EXPECT_EQ(f.kv.Scan("E", PrefixEnd("E"), 1)->size(), 0u);
  EXPECT_EQ(f.kv.Scan("U", PrefixEnd("U"), 1)->size(), 0u);
}

TEST(ObjectStore, SequentialWritesLieTogether) {
  StoreFixture f;
  for (uint64_t i = 0; i < 64; ++i)
    ASSERT_TRUE(f.Write(kObject, i * kBlockSize, std::string(kBlockSize, 'a')).ok());
  Chunk chunk;
  ASSERT_TRUE(LoadChunk(&f.kv, kObject, 0, &chunk).ok());
  for (uint32_t i = 1; i < 64; ++i) EXPECT_EQ(chunk.physical[i], chunk.physical[0] + i);
}

}  // namespace
}  // namespace nacre::ost
