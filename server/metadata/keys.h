// Keys of the MDT's tables: one byte for the table, then big-endian fields, so that what belongs together
// lies together (proto/FORMAT.md, "The MDT"). Pure functions.
#pragma once

#include <string>
#include <string_view>

#include "common/bytes.h"
#include "common/ids.h"
#include "common/status.h"

namespace nacre::mds {

enum class Table : uint8_t {
  kSuperblock = 0x01,
  kCounter = 0x02,
  kInodeCount = 0x03,
  kLosses = 0x04,  // server/kv/losses.h
  kEpoch = 0x05,   // server/replication/alone.h
  kInode = 0x10,
  kEntry = 0x11,
  kReverseLink = 0x12,
  kXattr = 0x13,
  kBody = 0x14,
  kOrphan = 0x15,
  kDestroyByFile = 0x16,  // of an earlier version
  kTruncate = 0x17,
  kDestroyAt = 0x18,
  kNewObjects = 0x19,
  kSizesKnown = 0x1a,
  kMoved = 0x1b,
  kRebalance = 0x1c,
  kTail = 0x1d,
  kSession = 0x20,
  kReplyBySequence = 0x21,  // of an earlier version
  kFence = 0x22,
  // 0x23: of earlier versions
  kReply = 0x24,
  // 0x40 and above: server/cluster/
};

enum class CounterId : uint8_t { kFidSequence = 1, kObjectSequence = 2, kSession = 3, kRun = 4 };

// No key of the MDT is as high: what a copy of the MDT keeps beside it (server/replication/store_copy.h) is.
inline constexpr std::string_view kMdtEnd = "\xff";

inline std::string TableKey(Table table) { return std::string(1, static_cast<char>(table)); }

inline std::string CounterKey(CounterId counter) {
  std::string key = TableKey(Table::kCounter);
  PutBig(&key, static_cast<uint8_t>(counter));
  return key;
}

inline std::string InodeCountKey(uint8_t slot) {
  std::string key = TableKey(Table::kInodeCount);
  PutBig(&key, slot);
  return key;
}

inline std::string FidKey(Table table, const Fid& fid) {
  std::string key = TableKey(table);
  key.reserve(17);
  PutFid(&key, fid);
  return key;
}

// The entries of a directory whose names have the same hash.
struct BucketId {
  Fid parent;
  uint64_t hash = 0;
  bool operator==(const BucketId&) const = default;
  template <typename H>
  friend H AbslHashValue(H state, const BucketId& id) {
    return H::combine(std::move(state), id.parent, id.hash);
  }
};

inline std::string EntryKey(const Fid& parent, uint64_t hash) {
  std::string key;
  key.reserve(25);
  key.push_back(static_cast<char>(Table::kEntry));
  PutFid(&key, parent);
  PutBig(&key, hash);
  return key;
}

inline std::string ReverseLinkKey(const Fid& fid, const Fid& parent, uint64_t cookie) {
  std::string key = FidKey(Table::kReverseLink, fid);
  PutFid(&key, parent);
  PutBig(&key, cookie);
  return key;
}

inline std::string XattrKey(const Fid& fid, std::string_view name) {
  std::string key = FidKey(Table::kXattr, fid);
  key.append(name);
  return key;
}

// Bytes that were appended to a file, from this offset on (tails.h).
inline std::string TailKey(const Fid& fid, uint64_t offset) {
  std::string key = FidKey(Table::kTail, fid);
  PutBig(&key, offset);
  return key;
}

inline std::string NumberKey(Table table, uint64_t number) {
  std::string key = TableKey(table);
  PutBig(&key, number);
  return key;
}

inline std::string DestroyAtPrefix(OstIndex ost) {
  std::string key = TableKey(Table::kDestroyAt);
  PutBig(&key, ost);
  return key;
}

inline std::string DestroyAtKeyOf(OstIndex ost, uint64_t object_sequence) {
  std::string key = DestroyAtPrefix(ost);
  PutBig(&key, object_sequence);
  return key;
}

struct DestroyAtKeyParts {
  OstIndex ost = 0;
  uint64_t sequence = 0;
};

// DATA_LOSS: it has another length.
inline StatusOr<DestroyAtKeyParts> ParseDestroyAtKey(std::string_view key) {
  ByteReader in(key.substr(1));
  DestroyAtKeyParts parts;
  parts.ost = in.Big<uint32_t>();
  parts.sequence = in.Big<uint64_t>();
  if (in.ok() && in.empty()) return parts;
  return absl::DataLossError(absl::StrFormat("damaged key of a destroy record: %d bytes", key.size()));
}

inline std::string SizesKnownKey(OstIndex ost) {
  std::string key = TableKey(Table::kSizesKnown);
  PutBig(&key, ost);
  return key;
}

inline std::string ReplyKey(SessionId session, uint32_t slot) {
  std::string key = NumberKey(Table::kReply, session);
  PutBig(&key, slot);
  return key;
}

}  // namespace nacre::mds
