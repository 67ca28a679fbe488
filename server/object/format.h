// The records of an OST's KvStore (proto/FORMAT.md, "OST"): keys, records, and their parsers. Pure functions;
// the parsers take any bytes and answer malformed ones with DATA_LOSS that says what is wrong.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/ids.h"
#include "common/status.h"

namespace nacre::ost {

inline constexpr uint32_t kFormatVersion = 2;
inline constexpr uint32_t kFormatWithoutAnswers = 1;  // is read; a start makes it version 2
inline constexpr uint32_t kChunkBlocks =
    64;  // blocks under one extent record (docs/performance.md, "Amplification")
inline constexpr uint64_t kMaxObjectBlocks = uint64_t{1} << 50;
inline constexpr uint64_t kMaxPhysicalBlocks = uint64_t{1} << 48;

// --- keys ---

inline constexpr std::string_view kSuperblockKey = "S";
inline constexpr std::string_view kLossesKey = "L";  // server/kv/losses.h
inline constexpr std::string_view kMdtEpochKey = "M";
inline constexpr std::string_view kScrubKey = "V";             // server/object/scrubber.h
std::string ObjectKey(const ObjectId& id);                     // 'O' id
std::string ExtentKey(const ObjectId& id, uint64_t chunk);     // 'E' id chunk
std::string UndoKey(uint64_t sequence);                        // 'U' sequence
std::string FenceKey(SessionId session);                       // 'F' session
std::string GrowthKey(SessionId session, const ObjectId& id);  // 'W' session id
std::string GrowthPrefix(SessionId session);                   // 0: of all sessions
std::string AnswerKey(SessionId session, uint32_t slot);       // 'A' session slot

StatusOr<ObjectId> ParseObjectKey(std::string_view key);
struct ExtentPlace {
  ObjectId object;
  uint64_t chunk = 0;
};
StatusOr<ExtentPlace> ParseExtentKey(std::string_view key);
StatusOr<uint64_t> ParseUndoKey(std::string_view key);
StatusOr<SessionId> ParseFenceKey(std::string_view key);
struct Growth {
  SessionId session = 0;
  ObjectId object;
};
StatusOr<Growth> ParseGrowthKey(std::string_view key);
inline constexpr uint32_t kMaxAnswerSlots = 65536;  // of a session
struct AnswerSlot {
  SessionId session = 0;
  uint32_t slot = 0;
};
StatusOr<AnswerSlot> ParseAnswerKey(std::string_view key);

// --- superblock ---

struct Superblock {
  uint32_t version = kFormatVersion;
  OstIndex index = 0;
  std::string uuid;
  std::string cluster_uuid;  // empty until the MGS has named it
};
std::string Encode(const Superblock& superblock);
// FAILED_PRECONDITION for another version.
StatusOr<Superblock> ParseSuperblock(std::string_view value);

// --- the epoch of the primary MDS ---

std::string EncodeMdtEpoch(uint64_t epoch);
StatusOr<uint64_t> ParseMdtEpoch(std::string_view value);  // not 0

// --- object ---

// Members of a chain that have an object in the same version have the same bytes of it.
struct ObjectVersion {
  uint32_t epoch = 0;    // of the chain when it was last changed; 0 without a chain
  uint64_t changes = 0;  // so far; 0: there is no such object, or it is not all there
  bool operator==(const ObjectVersion&) const = default;
};

struct ObjectRecord {
  uint64_t version = 0;    // rises with every change
  uint64_t size = 0;       // end of the last byte ever written
  uint64_t blocks = 0;     // mapped, unwritten ones included
  uint64_t unwritten = 0;  // of these: preallocated
  Fid parent;
  uint32_t group_generation = 0;  // epoch of the chain when it was last changed

  ObjectVersion full_version() const { return {group_generation, version}; }
  bool operator==(const ObjectRecord&) const = default;
};
// 0.0: there is no object.
inline ObjectVersion VersionOf(const std::optional<ObjectRecord>& record) {
  return record ? record->full_version() : ObjectVersion{};
}
std::string Encode(const ObjectRecord& record);
StatusOr<ObjectRecord> ParseObjectRecord(std::string_view value);

// --- extents ---

// The mapping of kChunkBlocks blocks of an object. physical and crc are meaningful where the bits say so.
struct Chunk {
  uint64_t mapped = 0;
  uint64_t unwritten = 0;  // subset of mapped: preallocated, reads as zeros, has no checksum
  std::array<uint64_t, kChunkBlocks> physical;
  std::array<uint32_t, kChunkBlocks> crc;

  bool is_mapped(uint32_t i) const { return (mapped >> i & 1) != 0; }
  bool is_unwritten(uint32_t i) const { return (unwritten >> i & 1) != 0; }
  bool is_written(uint32_t i) const { return ((mapped & ~unwritten) >> i & 1) != 0; }
  uint64_t count() const { return static_cast<uint64_t>(std::popcount(mapped)); }

  void Unmap(uint32_t i) {
    mapped &= ~(uint64_t{1} << i);
    unwritten &= ~(uint64_t{1} << i);
  }
  void MapWritten(uint32_t i, uint64_t block, uint32_t checksum) {
    mapped |= uint64_t{1} << i;
    unwritten &= ~(uint64_t{1} << i);
    physical[i] = block;
    crc[i] = checksum;
  }
  void MapUnwritten(uint32_t i, uint64_t block) {
    mapped |= uint64_t{1} << i;
    unwritten |= uint64_t{1} << i;
    physical[i] = block;
  }
};
static_assert(kChunkBlocks <= 64);

// The blocks whose bits are set in `mask`, as runs with their checksums packed behind.
std::string EncodeChunk(const Chunk& chunk, uint64_t mask = ~uint64_t{0});
Status ParseChunk(std::string_view value, Chunk* chunk);

// --- answers ---

// States that a mutation of a session has been carried out, so that a repeat after a restart is not. A
// session has as many slots as it has had mutations unanswered at a time; a slot is used again once the
// session has acknowledged the answer.
struct AnswerRecord {
  uint64_t sequence = 0;
  uint64_t low_water = 0;  // of the session, as the mutation said
  int64_t delta = 0;       // of allocated blocks
  bool operator==(const AnswerRecord&) const = default;
};
std::string Encode(const AnswerRecord& record);
StatusOr<AnswerRecord> ParseAnswerRecord(std::string_view value);

struct SlotAnswer {
  AnswerSlot slot;
  AnswerRecord record;
};

// --- undo ---

// The effect of one batch on one object, so that it can be verified and taken back after a loss of power.
struct UndoChunk {
  uint64_t chunk = 0;
  uint64_t changed = 0;  // which blocks
  Chunk before;
  Chunk after;
};
struct UndoRecord {
  ObjectId object;
  std::optional<ObjectRecord> before;  // none: the batch made the object
  std::vector<UndoChunk> chunks;
  std::optional<SlotAnswer> answer{};  // that the batch has recorded

  // A batch may have recorded nothing but an answer.
  bool changes_object() const { return before.has_value() || !chunks.empty(); }
};
std::string Encode(const UndoRecord& undo);
StatusOr<UndoRecord> ParseUndoRecord(std::string_view value);

// A run of physical blocks.
struct BlockRun {
  uint64_t first = 0;
  uint64_t count = 0;
  bool operator==(const BlockRun&) const = default;
};

// Adds a block to a list of runs, at the end of the last one if it continues that.
inline void AppendBlock(std::vector<BlockRun>* runs, uint64_t block) {
  if (!runs->empty() && runs->back().first + runs->back().count == block) {
    ++runs->back().count;
    return;
  }
  runs->push_back({block, 1});
}

}  // namespace nacre::ost
