#include "server/metadata/backup_format.h"

#include <absl/strings/str_format.h>

#include "common/bytes.h"
#include "common/crc32c.h"

namespace nacre::mds {
namespace {

constexpr std::string_view kMagic = "NACREBAK";
constexpr uint32_t kMaxHeader = 4096;
constexpr uint32_t kMaxBlock = 16 << 20;  // far above what is made: an entry is some 64 KiB at most

uint32_t Sum(std::string_view data, uint32_t before = 0) {
  return Crc32c(std::as_bytes(std::span(data.data(), data.size())), before);
}

uint32_t SumOf(uint32_t crc, uint32_t before) {
  std::string bytes;
  PutLittle(&bytes, crc);
  return Sum(bytes, before);
}

// A length, a checksum, and what they are about.
std::string Framed(std::string_view payload, uint32_t* sum) {
  const uint32_t crc = Sum(payload);
  *sum = SumOf(crc, *sum);
  std::string out;
  PutLittle(&out, static_cast<uint32_t>(payload.size()));
  PutLittle(&out, crc);
  out.append(payload);
  return out;
}

}  // namespace

std::string BackupEncoder::Begin(const BackupHeader& header) {
  std::string fields;
  PutText<uint32_t>(&fields, header.cluster_uuid);
  PutLittle(&fields, header.mdt_index);
  PutLittle(&fields, header.mdt_version);
  PutLittle(&fields, static_cast<uint64_t>(header.made_seconds));
  PutText<uint32_t>(&fields, header.mds_version);
  std::string out(kMagic);
  PutLittle(&out, kBackupVersion);
  return out + Framed(fields, &sum_);
}

std::string BackupEncoder::Block(const std::vector<KvEntry>& entries) {
  std::string payload;
  for (const KvEntry& entry : entries) {
    PutText<uint32_t>(&payload, entry.key);
    PutText<uint32_t>(&payload, entry.value);
  }
  entries_ += entries.size();
  return Framed(payload, &sum_);
}

std::string BackupEncoder::End() {
  std::string out;
  PutLittle(&out, uint32_t{0});
  PutLittle(&out, entries_);
  PutLittle(&out, sum_);
  PutLittle(&out, Sum(out));
  return out;
}

Status BackupReader::Damaged(std::string_view what) const {
  return absl::DataLossError(
      absl::StrFormat("the backup is damaged or incomplete, before byte %d: %s", position_, what));
}

StatusOr<std::string> BackupReader::Take(size_t size) {
  std::string bytes(size, '\0');
  in_.read(bytes.data(), static_cast<std::streamsize>(size));
  position_ += static_cast<uint64_t>(in_.gcount());
  if (static_cast<size_t>(in_.gcount()) != size) return Damaged("it ends in the middle");
  return bytes;
}

StatusOr<BackupHeader> BackupReader::ReadHeader() {
  auto begin = Take(kMagic.size() + 3 * sizeof(uint32_t));
  if (!begin.ok() || !begin->starts_with(kMagic)) {
    return absl::DataLossError(
        "this is no backup of an MDT: it does not begin as nacre mdt backup makes them");
  }
  ByteReader in(std::string_view(*begin).substr(kMagic.size()));
  const uint32_t version = in.Little<uint32_t>();
  if (version != kBackupVersion) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "the backup has format version %d; this program knows version %d: use the release that made "
        "it",
        version, kBackupVersion));
  }
  const uint32_t length = in.Little<uint32_t>();
  const uint32_t crc = in.Little<uint32_t>();
  if (length > kMaxHeader) return Damaged(absl::StrFormat("a header of %d bytes", length));
  ASSIGN_OR_RETURN(std::string bytes, Take(length));
  if (Sum(bytes) != crc) return Damaged("the header does not match its checksum");
  sum_ = SumOf(crc, sum_);
  ByteReader fields(bytes);
  BackupHeader header;
  header.cluster_uuid = fields.Text<uint32_t>();
  header.mdt_index = fields.Little<uint32_t>();
  header.mdt_version = fields.Little<uint32_t>();
  header.made_seconds = static_cast<int64_t>(fields.Little<uint64_t>());
  header.mds_version = fields.Text<uint32_t>();
  if (!fields.ok() || !fields.empty()) return Damaged("the header has another length than its fields");
  return header;
}

StatusOr<std::vector<KvEntry>> BackupReader::Next() {
  ASSIGN_OR_RETURN(std::string begin, Take(sizeof(uint32_t)));
  const uint32_t length = ByteReader(begin).Little<uint32_t>();
  if (length == 0) return ReadEnd();
  if (length > kMaxBlock) return Damaged(absl::StrFormat("a block of %d bytes", length));
  ASSIGN_OR_RETURN(std::string crc_bytes, Take(sizeof(uint32_t)));
  const uint32_t crc = ByteReader(crc_bytes).Little<uint32_t>();
  ASSIGN_OR_RETURN(std::string payload, Take(length));
  if (Sum(payload) != crc) return Damaged("a block does not match its checksum");
  sum_ = SumOf(crc, sum_);
  std::vector<KvEntry> entries;
  for (ByteReader in(payload); !in.empty();) {
    KvEntry& entry = entries.emplace_back();
    entry.key = in.Text<uint32_t>();
    entry.value = in.Text<uint32_t>();
    if (!in.ok() || entry.key.empty()) return Damaged("a block has another length than its entries");
  }
  entries_ += entries.size();
  return entries;
}

StatusOr<std::vector<KvEntry>> BackupReader::ReadEnd() {
  ASSIGN_OR_RETURN(std::string rest, Take(sizeof(uint64_t) + 2 * sizeof(uint32_t)));
  ByteReader in(rest);
  const uint64_t entries = in.Little<uint64_t>();
  const uint32_t sum = in.Little<uint32_t>();
  const std::string_view summed(rest.data(), rest.size() - sizeof(uint32_t));
  const std::string begin(sizeof(uint32_t), '\0');
  if (in.Little<uint32_t>() != Sum(summed, Sum(begin))) return Damaged("the end does not match its checksum");
  if (entries != entries_ || sum != sum_) {
    return Damaged(absl::StrFormat("it has %d entries of %d, or parts of another backup", entries_, entries));
  }
  if (in_.peek() != std::istream::traits_type::eof()) return Damaged("bytes follow its end");
  return std::vector<KvEntry>();
}

}  // namespace nacre::mds
