// Hostile bytes to the parsers of what an OST stores: never a crash, and what parses says the same when it is
// written again.
#include <cstdlib>

#include "server/object/format.h"
#include "server/object/scrubber.h"

namespace nacre::ost {
namespace {

void Require(bool condition) {
  if (!condition) std::abort();
}

void RequireSame(const Chunk& a, const Chunk& b) {
  Require(a.mapped == b.mapped && a.unwritten == b.unwritten);
  for (uint32_t i = 0; i < kChunkBlocks; ++i) {
    Require(!a.is_mapped(i) || a.physical[i] == b.physical[i]);
    Require(!a.is_written(i) || a.crc[i] == b.crc[i]);
  }
}

void TryChunk(std::string_view bytes) {
  Chunk chunk, again;
  if (!ParseChunk(bytes, &chunk).ok()) return;
  Require((chunk.unwritten & ~chunk.mapped) == 0);
  Require(ParseChunk(EncodeChunk(chunk), &again).ok());
  RequireSame(chunk, again);
}

void TryUndo(std::string_view bytes) {
  StatusOr<UndoRecord> undo = ParseUndoRecord(bytes);
  if (!undo.ok()) return;
  // Blocks outside the mask are not written again: only the shape must hold.
  Require(ParseUndoRecord(Encode(*undo)).ok());
}

void TryObject(std::string_view bytes) {
  StatusOr<ObjectRecord> record = ParseObjectRecord(bytes);
  if (record.ok()) Require(Encode(*record) == bytes);
}

void TryAnswer(std::string_view bytes) {
  StatusOr<AnswerRecord> record = ParseAnswerRecord(bytes);
  if (record.ok()) Require(Encode(*record) == bytes);
}

void TryMdtEpoch(std::string_view bytes) {
  StatusOr<uint64_t> epoch = ParseMdtEpoch(bytes);
  if (epoch.ok()) Require(EncodeMdtEpoch(*epoch) == bytes);
}

void TryScrub(std::string_view bytes) {
  StatusOr<ScrubRecord> record = ParseScrubRecord(bytes);
  if (record.ok()) Require(ParseScrubRecord(Encode(*record)).ok());
}

void TrySuperblock(std::string_view bytes) {
  StatusOr<Superblock> superblock = ParseSuperblock(bytes);
  if (superblock.ok()) Require(Encode(*superblock) == bytes);
}

void TryKeys(std::string_view bytes) {
  if (auto id = ParseObjectKey(bytes); id.ok()) Require(ObjectKey(*id) == bytes);
  if (auto place = ParseExtentKey(bytes); place.ok())
    Require(ExtentKey(place->object, place->chunk) == bytes);
  if (auto sequence = ParseUndoKey(bytes); sequence.ok()) Require(UndoKey(*sequence) == bytes);
  if (auto session = ParseFenceKey(bytes); session.ok()) Require(FenceKey(*session) == bytes);
  if (auto growth = ParseGrowthKey(bytes); growth.ok())
    Require(GrowthKey(growth->session, growth->object) == bytes);
  if (auto place = ParseAnswerKey(bytes); place.ok())
    Require(AnswerKey(place->session, place->slot) == bytes);
}

}  // namespace
}  // namespace nacre::ost

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 6) {
    case 0:
      nacre::ost::TryChunk(bytes);
      break;
    case 1:
      nacre::ost::TryUndo(bytes);
      break;
    case 2:
      nacre::ost::TryObject(bytes);
      break;
    case 3:
      nacre::ost::TrySuperblock(bytes);
      break;
    case 4:
      nacre::ost::TryAnswer(bytes);
      nacre::ost::TryMdtEpoch(bytes);
      nacre::ost::TryScrub(bytes);
      break;
    default:
      nacre::ost::TryKeys(bytes);
  }
  return 0;
}
