#include "server/object/format.h"

#include "common/bytes.h"

namespace nacre::ost {
namespace {

constexpr std::string_view kMagic = "NACREOST";
constexpr uint8_t kRunUnwritten = 1;
constexpr size_t kAnswerRecordBytes = 24;

Status Malformed(std::string_view what, std::string_view why) {
  return absl::DataLossError(absl::StrCat("malformed ", AbslView(what), ": ", AbslView(why)));
}

ByteReader KeyReader(std::string_view key, char tag) {
  return ByteReader(!key.empty() && key[0] == tag ? key.substr(1) : std::string_view());
}

}  // namespace

std::string ObjectKey(const ObjectId& id) {
  std::string key = "O";
  PutObjectId(&key, id);
  return key;
}

std::string ExtentKey(const ObjectId& id, uint64_t chunk) {
  std::string key = "E";
  key.reserve(21);
  PutObjectId(&key, id);
  PutBig(&key, chunk);
  return key;
}

std::string UndoKey(uint64_t sequence) {
  std::string key = "U";
  PutBig(&key, sequence);
  return key;
}

std::string FenceKey(SessionId session) {
  std::string key = "F";
  PutBig(&key, session);
  return key;
}

std::string GrowthPrefix(SessionId session) {
  std::string key = "W";
  if (session != 0) PutBig(&key, session);
  return key;
}

std::string GrowthKey(SessionId session, const ObjectId& id) {
  std::string key = GrowthPrefix(session);
  PutObjectId(&key, id);
  return key;
}

std::string AnswerKey(SessionId session, uint32_t slot) {
  std::string key = "A";
  PutBig(&key, session);
  PutBig(&key, slot);
  return key;
}

StatusOr<ObjectId> ParseObjectKey(std::string_view key) {
  ByteReader in = KeyReader(key, 'O');
  ObjectId id = in.ReadObjectId();
  if (!in.ok() || !in.empty()) return Malformed("object key", absl::StrCat(key.size(), " bytes"));
  return id;
}

StatusOr<ExtentPlace> ParseExtentKey(std::string_view key) {
  ByteReader in = KeyReader(key, 'E');
  ExtentPlace place;
  place.object = in.ReadObjectId();
  place.chunk = in.Big<uint64_t>();
  if (!in.ok() || !in.empty()) return Malformed("extent key", absl::StrCat(key.size(), " bytes"));
  if (place.chunk >= kMaxObjectBlocks / kChunkBlocks)
    return Malformed("extent key", absl::StrCat("chunk ", place.chunk));
  return place;
}

StatusOr<uint64_t> ParseUndoKey(std::string_view key) {
  ByteReader in = KeyReader(key, 'U');
  uint64_t sequence = in.Big<uint64_t>();
  if (!in.ok() || !in.empty()) return Malformed("undo key", absl::StrCat(key.size(), " bytes"));
  return sequence;
}

StatusOr<SessionId> ParseFenceKey(std::string_view key) {
  ByteReader in = KeyReader(key, 'F');
  SessionId session = in.Big<uint64_t>();
  if (!in.ok() || !in.empty()) return Malformed("fence key", absl::StrCat(key.size(), " bytes"));
  return session;
}

StatusOr<Growth> ParseGrowthKey(std::string_view key) {
  ByteReader in = KeyReader(key, 'W');
  Growth growth;
  growth.session = in.Big<uint64_t>();
  growth.object = in.ReadObjectId();
  if (!in.ok() || !in.empty()) return Malformed("growth key", absl::StrCat(key.size(), " bytes"));
  if (growth.session == 0) return Malformed("growth key", "session 0");
  return growth;
}

StatusOr<AnswerSlot> ParseAnswerKey(std::string_view key) {
  ByteReader in = KeyReader(key, 'A');
  AnswerSlot place;
  place.session = in.Big<uint64_t>();
  place.slot = in.Big<uint32_t>();
  if (!in.ok() || !in.empty()) return Malformed("answer key", absl::StrCat(key.size(), " bytes"));
  if (place.slot >= kMaxAnswerSlots) return Malformed("answer key", absl::StrCat("slot ", place.slot));
  return place;
}

std::string Encode(const Superblock& superblock) {
  std::string out(kMagic);
  PutLittle(&out, superblock.version);
  PutLittle(&out, superblock.index);
  PutText<uint16_t>(&out, superblock.uuid);
  PutText<uint16_t>(&out, superblock.cluster_uuid);
  return out;
}

StatusOr<Superblock> ParseSuperblock(std::string_view value) {
  ByteReader in(value);
  if (in.Take(kMagic.size()) != kMagic) return Malformed("OST superblock", "it does not begin with NACREOST");
  Superblock superblock;
  superblock.version = in.Little<uint32_t>();
  const bool known = superblock.version == kFormatVersion || superblock.version == kFormatWithoutAnswers;
  if (in.ok() && !known) {
    return absl::FailedPreconditionError(absl::StrCat("the OST has format version ", superblock.version,
                                                      "; this server knows version ", kFormatVersion,
                                                      ": start the version of Nacre that made it"));
  }
  superblock.index = in.Little<uint32_t>();
  superblock.uuid = in.Text<uint16_t>();
  superblock.cluster_uuid = in.Text<uint16_t>();
  if (!in.ok() || !in.empty()) return Malformed("OST superblock", absl::StrCat(value.size(), " bytes"));
  return superblock;
}

std::string EncodeMdtEpoch(uint64_t epoch) {
  std::string out;
  PutLittle(&out, epoch);
  return out;
}

StatusOr<uint64_t> ParseMdtEpoch(std::string_view value) {
  ByteReader in(value);
  const uint64_t epoch = in.Little<uint64_t>();
  if (!in.ok() || !in.empty() || epoch == 0)
    return Malformed("epoch of the primary MDS", absl::StrCat(value.size(), " bytes"));
  return epoch;
}

std::string Encode(const ObjectRecord& record) {
  std::string out;
  out.reserve(52);
  PutLittle(&out, record.version);
  PutLittle(&out, record.size);
  PutLittle(&out, record.blocks);
  PutLittle(&out, record.unwritten);
  PutFid(&out, record.parent);
  PutLittle(&out, record.group_generation);
  return out;
}

StatusOr<ObjectRecord> ParseObjectRecord(std::string_view value) {
  ByteReader in(value);
  ObjectRecord record;
  record.version = in.Little<uint64_t>();
  record.size = in.Little<uint64_t>();
  record.blocks = in.Little<uint64_t>();
  record.unwritten = in.Little<uint64_t>();
  record.parent = in.ReadFid();
  record.group_generation = in.Little<uint32_t>();
  if (!in.ok() || !in.empty()) return Malformed("object record", absl::StrCat(value.size(), " bytes"));
  if (record.size > kMaxObjectBlocks * kBlockSize)
    return Malformed("object record", absl::StrCat("size ", record.size));
  if (record.unwritten > record.blocks) {
    return Malformed("object record",
                     absl::StrCat(record.unwritten, " unwritten of ", record.blocks, " blocks"));
  }
  return record;
}

std::string EncodeChunk(const Chunk& chunk, uint64_t mask) {
  std::string out(1, '\0');
  uint64_t mapped = chunk.mapped & mask;
  out.reserve(1 + 11 + 4 * std::popcount(mapped));
  uint8_t runs = 0;
  for (uint32_t i = 0; i < kChunkBlocks;) {
    if ((mapped >> i & 1) == 0) {
      ++i;
      continue;
    }
    uint32_t end = i + 1;
    while (end < kChunkBlocks && (mapped >> end & 1) != 0 &&
           chunk.is_unwritten(end) == chunk.is_unwritten(i) &&
           chunk.physical[end] == chunk.physical[end - 1] + 1) {
      ++end;
    }
    PutLittle(&out, static_cast<uint8_t>(i));
    PutLittle(&out, static_cast<uint8_t>(end - i));
    PutLittle(&out, chunk.is_unwritten(i) ? kRunUnwritten : uint8_t{0});
    PutLittle(&out, chunk.physical[i]);
    ++runs;
    i = end;
  }
  out[0] = static_cast<char>(runs);
  uint64_t written = mapped & ~chunk.unwritten;
  for (uint32_t i = 0; i < kChunkBlocks; ++i) {
    if ((written >> i & 1) != 0) PutLittle(&out, chunk.crc[i]);
  }
  return out;
}

Status ParseChunk(std::string_view value, Chunk* chunk) {
  chunk->mapped = chunk->unwritten = 0;
  ByteReader in(value);
  uint32_t runs = in.Little<uint8_t>();
  uint32_t next = 0;
  for (uint32_t r = 0; r < runs && in.ok(); ++r) {
    uint32_t first = in.Little<uint8_t>();
    uint32_t count = in.Little<uint8_t>();
    uint32_t flags = in.Little<uint8_t>();
    uint64_t physical = in.Little<uint64_t>();
    if (!in.ok()) break;
    if (count == 0 || first < next || first + count > kChunkBlocks) {
      return Malformed("extent record",
                       absl::StrCat("run of ", count, " blocks at ", first, " behind ", next));
    }
    if (flags > kRunUnwritten) return Malformed("extent record", absl::StrCat("flags ", flags));
    if (physical >= kMaxPhysicalBlocks) return Malformed("extent record", absl::StrCat("block ", physical));
    for (uint32_t i = 0; i < count; ++i) {
      chunk->mapped |= uint64_t{1} << (first + i);
      if (flags == kRunUnwritten) chunk->unwritten |= uint64_t{1} << (first + i);
      chunk->physical[first + i] = physical + i;
    }
    next = first + count;
  }
  for (uint32_t i = 0; i < kChunkBlocks && in.ok(); ++i) {
    if (chunk->is_written(i)) chunk->crc[i] = in.Little<uint32_t>();
  }
  if (!in.ok() || !in.empty())
    return Malformed("extent record", absl::StrCat(value.size(), " bytes, ", runs, " runs"));
  return OkStatus();
}

std::string Encode(const AnswerRecord& record) {
  std::string out;
  out.reserve(kAnswerRecordBytes);
  PutLittle(&out, record.sequence);
  PutLittle(&out, record.low_water);
  PutLittle(&out, static_cast<uint64_t>(record.delta));
  return out;
}

StatusOr<AnswerRecord> ParseAnswerRecord(std::string_view value) {
  ByteReader in(value);
  AnswerRecord record;
  record.sequence = in.Little<uint64_t>();
  record.low_water = in.Little<uint64_t>();
  record.delta = static_cast<int64_t>(in.Little<uint64_t>());
  if (!in.ok() || !in.empty()) return Malformed("answer record", absl::StrCat(value.size(), " bytes"));
  if (record.low_water > record.sequence) {
    return Malformed("answer record",
                     absl::StrCat("low water ", record.low_water, " above sequence ", record.sequence));
  }
  return record;
}

std::string Encode(const UndoRecord& undo) {
  std::string out;
  PutObjectId(&out, undo.object);
  PutText<uint16_t>(&out, undo.before ? Encode(*undo.before) : std::string());
  PutLittle(&out, static_cast<uint32_t>(undo.chunks.size()));
  for (const UndoChunk& chunk : undo.chunks) {
    PutLittle(&out, chunk.chunk);
    PutLittle(&out, chunk.changed);
    PutText<uint16_t>(&out, EncodeChunk(chunk.before, chunk.changed));
    PutText<uint16_t>(&out, EncodeChunk(chunk.after, chunk.changed));
  }
  if (undo.answer) {
    PutLittle(&out, undo.answer->slot.session);
    PutLittle(&out, undo.answer->slot.slot);
    out += Encode(undo.answer->record);
  }
  return out;
}

StatusOr<UndoRecord> ParseUndoRecord(std::string_view value) {
  ByteReader in(value);
  UndoRecord undo;
  undo.object = in.ReadObjectId();
  if (std::string_view before = in.Text<uint16_t>(); !before.empty()) {
    ASSIGN_OR_RETURN(undo.before, ParseObjectRecord(before));
  }
  uint32_t count = in.Little<uint32_t>();
  for (uint32_t i = 0; i < count && in.ok(); ++i) {
    UndoChunk& chunk = undo.chunks.emplace_back();
    chunk.chunk = in.Little<uint64_t>();
    chunk.changed = in.Little<uint64_t>();
    std::string_view before = in.Text<uint16_t>();
    std::string_view after = in.Text<uint16_t>();
    if (!in.ok()) break;
    if (chunk.chunk >= kMaxObjectBlocks / kChunkBlocks)
      return Malformed("undo record", absl::StrCat("chunk ", chunk.chunk));
    RETURN_IF_ERROR(ParseChunk(before, &chunk.before));
    RETURN_IF_ERROR(ParseChunk(after, &chunk.after));
  }
  if (in.ok() && !in.empty()) {
    SlotAnswer& answer = undo.answer.emplace();
    answer.slot.session = in.Little<uint64_t>();
    answer.slot.slot = in.Little<uint32_t>();
    if (in.ok() && answer.slot.slot >= kMaxAnswerSlots)
      return Malformed("undo record", absl::StrCat("answer slot ", answer.slot.slot));
    ASSIGN_OR_RETURN(answer.record, ParseAnswerRecord(in.Take(kAnswerRecordBytes)));
  }
  if (!in.ok() || !in.empty())
    return Malformed("undo record", absl::StrCat(value.size(), " bytes, ", count, " chunks"));
  return undo;
}

}  // namespace nacre::ost
