#include "server/cluster/ost_record.h"

#include <set>

#include "common/bytes.h"

namespace nacre::cluster {
namespace {

constexpr uint8_t kVersionOfActive = 2;  // says nothing of its use
constexpr uint8_t kVersion = 3;

using State = OstMember::State;

Status Damaged(std::string_view why) {
  return absl::DataLossError(absl::StrFormat("damaged OST record: %s", why));
}

// The first version, which had no number: it begins with a uuid, which is never empty.
StatusOr<OstRecord> ParseOfOne(std::string_view data) {
  ByteReader in(data);
  OstMember member;
  member.uuid = in.Text<uint32_t>();
  member.address = in.Text<uint32_t>();
  member.total_bytes = in.Little<uint64_t>();
  if (!in.ok() || !in.empty()) return Damaged("wrong length");
  OstRecord record;
  record.members.push_back(std::move(member));
  return record;
}

Status CheckMembers(const OstRecord& record) {
  if (record.members.empty() || record.members.size() > record.copies || !record.head().in_sync())
    return Damaged("no member in sync, or too many");
  std::set<std::string_view> uuids;
  for (const OstMember& member : record.members) {
    if (member.uuid.empty() || !uuids.insert(member.uuid).second) return Damaged("a member twice");
  }
  auto place = [](const OstMember& member) {
    return member.in_sync() ? 0 : member.state == State::kJoining ? 1 : 2;
  };
  if (!std::ranges::is_sorted(record.members, {}, place)) return Damaged("its members are out of order");
  return OkStatus();
}

}  // namespace

const OstMember* OstRecord::Find(std::string_view uuid) const {
  auto it = std::ranges::find(members, uuid, &OstMember::uuid);
  return it == members.end() ? nullptr : &*it;
}

std::string OstKey(OstIndex index) {
  std::string key(1, kOstTable);
  PutBig(&key, index);
  return key;
}

std::string EncodeOst(const OstRecord& record) {
  std::string out;
  if (record.copies <= 1 && record.use == OstUse::kActive) {
    PutText<uint32_t>(&out, record.head().uuid);
    PutText<uint32_t>(&out, record.head().address);
    PutLittle(&out, record.head().total_bytes);
    return out;
  }
  PutLittle<uint32_t>(&out, 0);
  if (record.use == OstUse::kActive) {
    PutLittle(&out, kVersionOfActive);
  } else {
    PutLittle(&out, kVersion);
    PutLittle(&out, static_cast<uint8_t>(record.use));
  }
  PutLittle(&out, record.epoch);
  PutLittle(&out, static_cast<uint8_t>(record.copies));
  PutLittle(&out, static_cast<uint8_t>(record.members.size()));
  for (const OstMember& member : record.members) {
    PutText<uint32_t>(&out, member.uuid);
    PutText<uint32_t>(&out, member.address);
    PutLittle(&out, member.total_bytes);
    PutLittle(&out, member.instance);
    PutLittle(&out, static_cast<uint8_t>(member.state));
  }
  return out;
}

StatusOr<OstRecord> ParseOst(std::string_view data) {
  ByteReader in(data);
  if (in.Little<uint32_t>() != 0 || !in.ok()) return ParseOfOne(data);
  const uint8_t version = in.Little<uint8_t>();
  if (version > kVersion) {
    return absl::FailedPreconditionError(
        absl::StrFormat("an OST record of version %d; this program knows version %d: use the release that "
                        "wrote it, or upgrade",
                        version, kVersion));
  }
  if (version != kVersion && version != kVersionOfActive) return Damaged(absl::StrCat("version ", version));
  OstRecord record;
  if (version == kVersion) {
    const uint8_t use = in.Little<uint8_t>();
    if (use == 0 || use > static_cast<uint8_t>(OstUse::kLost)) return Damaged(absl::StrCat("use ", use));
    record.use = static_cast<OstUse>(use);
  }
  record.epoch = in.Little<uint32_t>();
  record.copies = in.Little<uint8_t>();
  const size_t count = in.Little<uint8_t>();
  const bool of_one = version == kVersion && record.copies == 1 && record.epoch == 0 && count == 1;
  const bool chained = record.epoch != 0 && record.copies >= 2 && record.copies <= kMaxCopies;
  if ((!of_one && !chained) || count > record.copies)
    return Damaged(absl::StrFormat("epoch %d, %d copies, %d members", record.epoch, record.copies, count));
  for (size_t i = 0; i < count; ++i) {
    OstMember member;
    member.uuid = in.Text<uint32_t>();
    member.address = in.Text<uint32_t>();
    member.total_bytes = in.Little<uint64_t>();
    member.instance = in.Little<uint64_t>();
    const uint8_t state = in.Little<uint8_t>();
    if (state > static_cast<uint8_t>(State::kJoining)) return Damaged(absl::StrCat("state ", state));
    member.state = static_cast<State>(state);
    record.members.push_back(std::move(member));
  }
  if (!in.ok() || !in.empty()) return Damaged("wrong length");
  RETURN_IF_ERROR(CheckMembers(record));
  return record;
}

}  // namespace nacre::cluster
