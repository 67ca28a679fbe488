// The records of the MDT, as values and as bytes (proto/FORMAT.md, "The MDT", describes every byte). Parsers
// check their whole input and return DATA_LOSS with the reason for anything damaged. Plain values; not
// thread-safe by themselves.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.h"
#include "common/ids.h"
#include "common/limits.h"
#include "common/status.h"
#include "proto/types.pb.h"
#include "rpc/convert.h"

namespace nacre::mds {

inline constexpr uint64_t kEndOfFile = ~uint64_t{0};  // the end of a layout's last component
inline constexpr uint64_t kMaxFileSize = uint64_t{1} << 62;
inline constexpr int kMaxDepth = 4096;  // of directories: more is a damaged tree

struct LayoutComponent {
  uint64_t end = kEndOfFile;
  uint32_t stripe_size = 0;
  std::vector<uint32_t> groups;  // OST group of each stripe
  bool operator==(const LayoutComponent&) const = default;
};

struct Layout {
  uint32_t generation = 0;
  uint64_t object_sequence = 0;
  std::vector<LayoutComponent> components;
  bool operator==(const Layout&) const = default;
};

struct TemplateComponent {
  uint64_t end = kEndOfFile;
  uint32_t stripe_size = 0;
  int32_t stripe_count = 1;
  uint32_t copies = 0;  // of its OSTs; 0: as few as there are
  bool operator==(const TemplateComponent&) const = default;
};
using LayoutTemplate = std::vector<TemplateComponent>;

// One inode. The FID is its key.
struct Inode {
  Fid fid;
  uint32_t mode = 0;
  uint32_t nlink = 0;
  uint32_t uid = 0;
  uint32_t gid = 0;
  uint64_t rdev = 0;
  uint64_t size = 0;    // of a directory: the number of its entries
  uint64_t blocks = 0;  // units of 512 bytes
  WallTime atime, mtime, ctime, btime;
  uint64_t change = 0;
  Fid parent;  // the primary link: the directory and the entry's cookie there; others are reverse link
               // records
  uint64_t parent_cookie = 0;
  uint32_t xattrs = 0;  // how many are set
  bool inline_data = false;
  Layout layout;                  // regular files
  LayoutTemplate default_layout;  // directories: empty means inherited
  bool operator==(const Inode&) const = default;
};

// The entries of a directory whose names have the same hash: nearly always one.
struct BucketEntry {
  uint8_t index = 0;  // low byte of the cookie, stays with the entry
  uint8_t type = 0;   // d_type
  Fid fid;
  std::string name;
  bool operator==(const BucketEntry&) const = default;
};
using Bucket = std::vector<BucketEntry>;

struct Superblock {
  uint32_t version = 0;
  std::string cluster_uuid;
  uint64_t hash_key[2] = {0, 0};  // of names in directories
  bool operator==(const Superblock&) const = default;
};
inline constexpr uint32_t kFormatVersion = 3;
// Those that are read; a start makes them the present one. Version 1 has destroy records by file, and
// truncation records of a size alone; before version 3 there are no tails (tails.h).
inline constexpr uint32_t kOldestFormatVersion = 1;
inline bool IsKnownFormat(uint32_t version) {
  return version >= kOldestFormatVersion && version <= kFormatVersion;
}

struct SessionRecord {
  std::string name;
  uint64_t nonce = 0;
  bool read_only = false;
  bool operator==(const SessionRecord&) const = default;
};

// The answer to a mutation of a session.
struct ReplyRecord {
  uint64_t sequence = 0;
  std::string encoded;  // proto::MetadataReply
  bool operator==(const ReplyRecord&) const = default;
};

// Objects that are to be destroyed at one OST: stripes of the sequence in the key.
struct DestroyAtRecord {
  std::vector<uint32_t> stripes;
  bool operator==(const DestroyAtRecord&) const = default;
};

// A list of OSTs: of a fence record, and of a destroy record of an earlier version (stripe n lay on
// groups[n]).
struct DestroyRecord {
  std::vector<uint32_t> groups;
  bool operator==(const DestroyRecord&) const = default;
};

// A truncation that has been decided: the objects are being cut. It is meant for the file as it was then, and
// void once the file has another layout.
struct TruncateRecord {
  uint64_t size = 0;
  uint32_t generation = 0;       // of the file's layout
  uint64_t object_sequence = 0;  // likewise. 0 in a record of an earlier version, which did not say: void
  // The mutation that wants it: its reply is recorded when the file has its new size. 0: none.
  SessionId session = 0;
  uint64_t sequence = 0;
  bool operator==(const TruncateRecord&) const = default;
};

// Objects are being written that are no file's yet: stripes 0, 1, … of the sequence in the key.
struct NewObjectsRecord {
  std::vector<uint32_t> groups;  // where they lie
  bool operator==(const NewObjectsRecord&) const = default;
};

// Objects that a file has left for others: stripes 0, 1, … of the sequence in the key. They are destroyed
// when no client reads by the old layout any more.
struct MovedRecord {
  Fid fid;                       // of the file
  std::vector<uint32_t> groups;  // where they lie
  bool operator==(const MovedRecord&) const = default;
};

// Files are being spread over OSTs (rebalancer.h).
struct RebalanceRecord {
  uint32_t threshold = 0;  // in hundredths of a percentage point: as far apart OSTs may be, 1 to 10,000
  uint64_t run = 0;        // its number, which no other run has
  // A file that has objects of this sequence, or of a later one, has been moved by it, or made since.
  uint64_t first_sequence = 0;
  bool operator==(const RebalanceRecord&) const = default;
};
inline constexpr uint32_t kMostRebalanceThreshold = 10'000;

std::string EncodeInode(const Inode& inode);
StatusOr<Inode> ParseInode(const Fid& fid, std::string_view data);
std::string EncodeBucket(const Bucket& bucket);
StatusOr<Bucket> ParseBucket(std::string_view data);
std::string EncodeSuperblock(const Superblock& superblock);
// FAILED_PRECONDITION for another version.
StatusOr<Superblock> ParseSuperblock(std::string_view data);
std::string EncodeSession(const SessionRecord& session);
StatusOr<SessionRecord> ParseSession(std::string_view data);
std::string EncodeReply(const ReplyRecord& record);
StatusOr<ReplyRecord> ParseReply(std::string_view data);
std::string EncodeDestroy(const DestroyRecord& record);
StatusOr<DestroyRecord> ParseDestroy(std::string_view data);
std::string EncodeDestroyAt(const DestroyAtRecord& record);
StatusOr<DestroyAtRecord> ParseDestroyAt(std::string_view data);
std::string EncodeTruncate(const TruncateRecord& record);
StatusOr<TruncateRecord> ParseTruncate(std::string_view data);
std::string EncodeNewObjects(const NewObjectsRecord& record);
StatusOr<NewObjectsRecord> ParseNewObjects(std::string_view data);
std::string EncodeMoved(const MovedRecord& record);
StatusOr<MovedRecord> ParseMoved(std::string_view data);
std::string EncodeRebalance(const RebalanceRecord& record);
StatusOr<RebalanceRecord> ParseRebalance(std::string_view data);
std::string EncodeNumber(uint64_t value);
StatusOr<uint64_t> ParseNumber(std::string_view data);

// Wire forms.
using nacre::FromProto;
using nacre::ToProto;
proto::Attr ToProto(const Inode& inode);
proto::Layout ToProto(const Layout& layout);
proto::LayoutTemplate ToProto(const LayoutTemplate& layout);

// OST group of every stripe, in the order of the stripes' numbers.
std::vector<uint32_t> StripeGroups(const Layout& layout);
// Of objects of which nothing else is known: stripe n of the sequence lies at groups[n].
Layout LayoutOfObjects(uint64_t object_sequence, std::vector<uint32_t> groups);

}  // namespace nacre::mds
