#include "server/object/format.h"

#include <gtest/gtest.h>

#include "common/random.h"

namespace nacre::ost {
namespace {

// Some written blocks, some unwritten, some holes; runs and single blocks.
Chunk RandomChunk(Random* random) {
  Chunk chunk;
  uint64_t physical = random->Below(kMaxPhysicalBlocks - 1000);
  for (uint32_t i = 0; i < kChunkBlocks; ++i) {
    physical = random->OneIn(5) ? random->Below(kMaxPhysicalBlocks - 1000) : physical + 1;
    if (random->OneIn(4)) continue;
    if (random->OneIn(4)) {
      chunk.MapUnwritten(i, physical);
    } else {
      chunk.MapWritten(i, physical, static_cast<uint32_t>(random->Next()));
    }
  }
  return chunk;
}

void ExpectEqual(const Chunk& a, const Chunk& b, uint64_t mask = ~uint64_t{0}) {
  EXPECT_EQ(a.mapped & mask, b.mapped);
  EXPECT_EQ(a.unwritten & mask, b.unwritten);
  for (uint32_t i = 0; i < kChunkBlocks; ++i) {
    if (!b.is_mapped(i)) continue;
    EXPECT_EQ(a.physical[i], b.physical[i]);
    EXPECT_TRUE(b.is_unwritten(i) || a.crc[i] == b.crc[i]) << i;
  }
}

TEST(Format, ChunksGoThereAndBack) {
  SeededRandom random(1);
  for (int i = 0; i < 500; ++i) {
    Chunk chunk = RandomChunk(&random), parsed;
    uint64_t mask = random.OneIn(2) ? ~uint64_t{0} : random.Next();
    ASSERT_TRUE(ParseChunk(EncodeChunk(chunk, mask), &parsed).ok());
    ExpectEqual(chunk, parsed, mask);
  }
}

TEST(Format, AFullChunkInOneRunIsSmall) {
  Chunk chunk;
  for (uint32_t i = 0; i < kChunkBlocks; ++i) chunk.MapWritten(i, 100 + i, i);
  EXPECT_EQ(EncodeChunk(chunk).size(), 1 + 11 + 4 * kChunkBlocks);
}

TEST(Format, DamagedChunksAreRefused) {
  SeededRandom random(2);
  Chunk parsed;
  EXPECT_FALSE(ParseChunk("", &parsed).ok());
  for (int i = 0; i < 200; ++i) {
    std::string good = EncodeChunk(RandomChunk(&random));
    EXPECT_FALSE(ParseChunk(good.substr(0, random.Below(good.size())), &parsed).ok());
    EXPECT_FALSE(ParseChunk(good + "x", &parsed).ok());
    std::string bad =
        good;  // flipped bits may give another valid record, never a crash or a block out of range
    bad[random.Below(bad.size())] ^= static_cast<char>(1 << random.Below(8));
    if (!ParseChunk(bad, &parsed).ok()) continue;
    EXPECT_EQ(parsed.unwritten & ~parsed.mapped, 0u);
  }
}

TEST(Format, UndoRecordsGoThereAndBack) {
  SeededRandom random(3);
  for (int i = 0; i < 100; ++i) {
    UndoRecord undo{{random.Next(), 5}, std::nullopt, {}};
    if (random.OneIn(2)) undo.before = ObjectRecord{3, 4096, 7, 2, {1, 2, 3}, 9};
    for (uint64_t n = random.Below(4); n > 0; --n) {
      undo.chunks.push_back({random.Below(1000), random.Next(), RandomChunk(&random), RandomChunk(&random)});
    }
    if (random.OneIn(2)) {
      undo.answer = SlotAnswer{{random.Next(), 3}, {random.Next(), 0, 7}};
    }
    std::string encoded = Encode(undo);
    auto parsed = ParseUndoRecord(encoded);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(parsed->object, undo.object);
    EXPECT_EQ(parsed->before, undo.before);
    EXPECT_EQ(parsed->answer.has_value(), undo.answer.has_value());
    if (undo.answer && parsed->answer) {
      EXPECT_EQ(parsed->answer->slot.session, undo.answer->slot.session);
      EXPECT_EQ(parsed->answer->slot.slot, undo.answer->slot.slot);
      EXPECT_EQ(parsed->answer->record, undo.answer->record);
    }
    ASSERT_EQ(parsed->chunks.size(), undo.chunks.size());
    for (size_t c = 0; c < undo.chunks.size(); ++c) {
      ExpectEqual(undo.chunks[c].before, parsed->chunks[c].before, undo.chunks[c].changed);
      ExpectEqual(undo.chunks[c].after, parsed->chunks[c].after, undo.chunks[c].changed);
    }
    const size_t without_answer = encoded.size() - (undo.answer ? 36 : 0);
    EXPECT_FALSE(ParseUndoRecord(encoded.substr(0, random.Below(without_answer))).ok());
  }
}

TEST(Format, ObjectRecordsAndSuperblocks) {
  ObjectRecord record{3, 4096, 7, 2, {1, 2, 3}, 9};
  EXPECT_EQ(Encode(record).size(), 52u);
  EXPECT_EQ(*ParseObjectRecord(Encode(record)), record);
  EXPECT_FALSE(ParseObjectRecord(Encode(record).substr(1)).ok());
  record.unwritten = 8;
  EXPECT_FALSE(ParseObjectRecord(Encode(record)).ok()) << "more unwritten blocks than blocks";
  Superblock superblock{kFormatVersion, 7, "uuid", "cluster"};
  auto parsed = ParseSuperblock(Encode(superblock));
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->index, 7u);
  EXPECT_EQ(parsed->uuid, "uuid");
  EXPECT_EQ(parsed->cluster_uuid, "cluster");
  EXPECT_TRUE(absl::IsDataLoss(ParseSuperblock("something else").status()));
  superblock.version = kFormatWithoutAnswers;
  EXPECT_EQ(ParseSuperblock(Encode(superblock))->version, kFormatWithoutAnswers);
  superblock.version = kFormatVersion + 1;
  EXPECT_TRUE(absl::IsFailedPrecondition(ParseSuperblock(Encode(superblock)).status()));
}

TEST(Format, AnswerRecordsGoThereAndBack) {
  const AnswerRecord record{9, 7, -5};
  EXPECT_EQ(*ParseAnswerRecord(Encode(record)), record);
  EXPECT_FALSE(ParseAnswerRecord(Encode(record).substr(1)).ok());
  EXPECT_FALSE(ParseAnswerRecord(Encode(AnswerRecord{7, 9, 0})).ok()) << "a low water above its request";
  EXPECT_EQ(ParseAnswerKey(AnswerKey(5, 6))->session, 5u);
  EXPECT_EQ(ParseAnswerKey(AnswerKey(5, 6))->slot, 6u);
  EXPECT_FALSE(ParseAnswerKey("A123").ok());
  EXPECT_FALSE(ParseAnswerKey(AnswerKey(5, kMaxAnswerSlots)).ok());
}

TEST(Format, KeysAreInOrderAndParse) {
  EXPECT_LT(ExtentKey({1, 2}, 255), ExtentKey({1, 2}, 256));
  EXPECT_LT(ExtentKey({1, 2}, ~uint64_t{0}), ExtentKey({1, 3}, 0));
  EXPECT_LT(ObjectKey({255, 0}), ObjectKey({256, 0}));
  EXPECT_LT(UndoKey(255), UndoKey(256));
  EXPECT_EQ(ParseObjectKey(ObjectKey({5, 6}))->stripe, 6u);
  EXPECT_EQ(ParseExtentKey(ExtentKey({5, 6}, 77))->chunk, 77u);
  EXPECT_EQ(*ParseUndoKey(UndoKey(99)), 99u);
  EXPECT_EQ(*ParseFenceKey(FenceKey(98)), 98u);
  EXPECT_EQ(ParseGrowthKey(GrowthKey(97, {5, 6}))->session, 97u);
  EXPECT_EQ(ParseGrowthKey(GrowthKey(97, {5, 6}))->object, (ObjectId{5, 6}));
  EXPECT_FALSE(ParseGrowthKey(GrowthPrefix(97)).ok());
  EXPECT_FALSE(ParseObjectKey("O123").ok());
  EXPECT_FALSE(ParseExtentKey(ObjectKey({5, 6})).ok());
  EXPECT_FALSE(ParseExtentKey(ExtentKey({5, 6}, ~uint64_t{0})).ok()) << "beyond the largest object";
}

}  // namespace
}  // namespace nacre::ost
