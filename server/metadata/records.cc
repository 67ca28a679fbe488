#include "server/metadata/records.h"

#include <sys/stat.h>

#include <algorithm>

#include "common/bytes.h"
#include "rpc/convert.h"
#include "server/cluster/ost_record.h"

namespace nacre::mds {
namespace {

constexpr uint8_t kInodeVersion = 1;
constexpr uint8_t kInodeWithCopies = 2;  // its default layout says how many copies the OSTs are to have
constexpr uint8_t kFlagInline = 1;
constexpr uint8_t kTruncateVersion = 1;
constexpr uint8_t kRebalanceVersion = 1;
// Bounds that a sound record never passes: a damaged length is refused instead of allocated.
constexpr size_t kMaxComponents = 64;
constexpr size_t kMaxStripes = 65536;
constexpr uint64_t kMaxInline = 64 << 10;  // MetadataOptions::inline_limit is never more

Status Damaged(std::string_view what, std::string_view why) {
  return absl::DataLossError(absl::StrCat("damaged ", AbslView(what), " record: ", AbslView(why)));
}

std::string EncodeNumbers(const std::vector<uint32_t>& numbers) {
  std::string out;
  for (uint32_t number : numbers) PutLittle(&out, number);
  return out;
}

StatusOr<std::vector<uint32_t>> ParseNumbers(std::string_view what, std::string_view data) {
  if (data.size() % sizeof(uint32_t) != 0) return Damaged(what, absl::StrCat(data.size(), " bytes long"));
  ByteReader in(data);
  std::vector<uint32_t> numbers;
  while (!in.empty()) numbers.push_back(in.Little<uint32_t>());
  return numbers;
}

void PutTime(std::string* out, const WallTime& time) {
  PutLittle(out, static_cast<uint64_t>(time.seconds));
  PutLittle(out, time.nanos);
}

WallTime ReadTime(ByteReader* in) {
  WallTime time;
  time.seconds = static_cast<int64_t>(in->Little<uint64_t>());
  time.nanos = in->Little<uint32_t>();
  return time;
}

void PutLayout(std::string* out, const Layout& layout) {
  PutLittle(out, layout.generation);
  PutLittle(out, layout.object_sequence);
  PutLittle(out, static_cast<uint8_t>(layout.components.size()));
  for (const LayoutComponent& component : layout.components) {
    PutLittle(out, component.end);
    PutLittle(out, component.stripe_size);
    PutLittle(out, static_cast<uint32_t>(component.groups.size()));
    for (uint32_t group : component.groups) PutLittle(out, group);
  }
}

Status ReadLayout(ByteReader* in, Layout* layout) {
  layout->generation = in->Little<uint32_t>();
  layout->object_sequence = in->Little<uint64_t>();
  size_t count = in->Little<uint8_t>();
  if (count > kMaxComponents) return Damaged("inode", absl::StrCat(count, " layout components"));
  uint64_t start = 0;
  for (size_t i = 0; i < count; ++i) {
    LayoutComponent component;
    component.end = in->Little<uint64_t>();
    component.stripe_size = in->Little<uint32_t>();
    size_t stripes = in->Little<uint32_t>();
    if (stripes > kMaxStripes) return Damaged("inode", absl::StrCat(stripes, " stripes"));
    for (size_t n = 0; n < stripes; ++n) component.groups.push_back(in->Little<uint32_t>());
    if (in->ok() && (component.groups.empty() || component.stripe_size == 0)) {
      return Damaged("inode", "a layout component without stripes");
    }
    if (in->ok() && component.end <= start)
      return Damaged("inode", absl::StrCat("a layout component from ", start, " to ", component.end));
    start = component.end;
    layout->components.push_back(std::move(component));
  }
  return OkStatus();
}

bool HasCopies(const Inode& inode) {
  return S_ISDIR(inode.mode) &&
         std::ranges::any_of(inode.default_layout, [](const TemplateComponent& c) { return c.copies != 0; });
}

void PutTemplate(std::string* out, const LayoutTemplate& layout, bool copies) {
  PutLittle(out, static_cast<uint8_t>(layout.size()));
  for (const TemplateComponent& component : layout) {
    PutLittle(out, component.end);
    PutLittle(out, component.stripe_size);
    PutLittle(out, static_cast<uint32_t>(component.stripe_count));
    if (copies) PutLittle(out, static_cast<uint8_t>(component.copies));
  }
}

Status ReadTemplate(ByteReader* in, LayoutTemplate* layout, bool copies) {
  size_t count = in->Little<uint8_t>();
  if (count > kMaxComponents) return Damaged("inode", absl::StrCat(count, " template components"));
  for (size_t i = 0; i < count; ++i) {
    TemplateComponent component;
    component.end = in->Little<uint64_t>();
    component.stripe_size = in->Little<uint32_t>();
    component.stripe_count = static_cast<int32_t>(in->Little<uint32_t>());
    if (copies) component.copies = in->Little<uint8_t>();
    if (component.copies > cluster::kMaxCopies)
      return Damaged("inode", absl::StrCat(component.copies, " copies"));
    layout->push_back(component);
  }
  return OkStatus();
}

Status CheckEnd(const ByteReader& in, std::string_view what) {
  if (!in.ok()) return Damaged(what, "it is too short");
  if (!in.empty()) return Damaged(what, absl::StrCat(in.rest().size(), " bytes too long"));
  return OkStatus();
}

}  // namespace

std::string EncodeInode(const Inode& inode) {
  std::string out;
  out.reserve(192);
  const bool copies = HasCopies(inode);
  PutLittle(&out, copies ? kInodeWithCopies : kInodeVersion);
  PutLittle(&out, static_cast<uint8_t>(inode.inline_data ? kFlagInline : 0));
  PutLittle(&out, inode.mode);
  PutLittle(&out, inode.nlink);
  PutLittle(&out, inode.uid);
  PutLittle(&out, inode.gid);
  PutLittle(&out, inode.rdev);
  PutLittle(&out, inode.size);
  PutLittle(&out, inode.blocks);
  for (const WallTime* time : {&inode.atime, &inode.mtime, &inode.ctime, &inode.btime}) PutTime(&out, *time);
  PutLittle(&out, inode.change);
  PutFid(&out, inode.parent);
  PutLittle(&out, inode.parent_cookie);
  PutLittle(&out, inode.xattrs);
  if (S_ISREG(inode.mode)) PutLayout(&out, inode.layout);
  if (S_ISDIR(inode.mode)) PutTemplate(&out, inode.default_layout, copies);
  return out;
}

StatusOr<Inode> ParseInode(const Fid& fid, std::string_view data) {
  ByteReader in(data);
  Inode inode;
  inode.fid = fid;
  uint8_t version = in.Little<uint8_t>();
  if (version != kInodeVersion && version != kInodeWithCopies)
    return Damaged("inode", absl::StrCat(fid.ToString(), " has version ", version));
  uint8_t flags = in.Little<uint8_t>();
  if ((flags & ~kFlagInline) != 0)
    return Damaged("inode", absl::StrCat(fid.ToString(), " has flags ", flags));
  inode.inline_data = (flags & kFlagInline) != 0;
  inode.mode = in.Little<uint32_t>();
  inode.nlink = in.Little<uint32_t>();
  inode.uid = in.Little<uint32_t>();
  inode.gid = in.Little<uint32_t>();
  inode.rdev = in.Little<uint64_t>();
  inode.size = in.Little<uint64_t>();
  inode.blocks = in.Little<uint64_t>();
  for (WallTime* time : {&inode.atime, &inode.mtime, &inode.ctime, &inode.btime}) *time = ReadTime(&in);
  inode.change = in.Little<uint64_t>();
  inode.parent = in.ReadFid();
  inode.parent_cookie = in.Little<uint64_t>();
  inode.xattrs = in.Little<uint32_t>();
  if (S_ISREG(inode.mode)) RETURN_IF_ERROR(ReadLayout(&in, &inode.layout));
  if (S_ISDIR(inode.mode)) {
    RETURN_IF_ERROR(ReadTemplate(&in, &inode.default_layout, version == kInodeWithCopies));
  }
  RETURN_IF_ERROR(CheckEnd(in, absl::StrCat("inode ", fid.ToString())));
  if (inode.inline_data && (!S_ISREG(inode.mode) || inode.size > kMaxInline)) {
    return Damaged("inode", absl::StrCat(fid.ToString(), " has mode ", inode.mode, " and ", inode.size,
                                         " bytes of inline data"));
  }
  return inode;
}

std::string EncodeBucket(const Bucket& bucket) {
  std::string out;
  for (const BucketEntry& entry : bucket) {
    PutLittle(&out, entry.index);
    PutLittle(&out, entry.type);
    PutFid(&out, entry.fid);
    PutText<uint8_t>(&out, entry.name);
  }
  return out;
}

StatusOr<Bucket> ParseBucket(std::string_view data) {
  ByteReader in(data);
  Bucket bucket;
  while (in.ok() && !in.empty()) {
    BucketEntry entry;
    entry.index = in.Little<uint8_t>();
    entry.type = in.Little<uint8_t>();
    entry.fid = in.ReadFid();
    entry.name = in.Text<uint8_t>();
    if (in.ok() && entry.name.empty()) return Damaged("directory entry", "a name is empty");
    bucket.push_back(std::move(entry));
  }
  RETURN_IF_ERROR(CheckEnd(in, "directory entry"));
  if (bucket.empty()) return Damaged("directory entry", "it is empty");
  return bucket;
}

std::string EncodeSuperblock(const Superblock& superblock) {
  std::string out = "NACREMDT";
  PutLittle(&out, superblock.version);
  PutText<uint32_t>(&out, superblock.cluster_uuid);
  for (uint64_t part : superblock.hash_key) PutLittle(&out, part);
  return out;
}

StatusOr<Superblock> ParseSuperblock(std::string_view data) {
  ByteReader in(data);
  if (in.Take(8) != "NACREMDT") return Damaged("superblock", "this is no MDT");
  Superblock superblock;
  superblock.version = in.Little<uint32_t>();
  if (superblock.version == 0) {
    return absl::FailedPreconditionError(
        "this is no MDT yet: nacre mdt restore into it was not finished. Empty the directory and restore "
        "again");
  }
  if (!IsKnownFormat(superblock.version)) {
    return absl::FailedPreconditionError(
        absl::StrFormat("the MDT has format version %d; this program knows version %d: use the release that "
                        "wrote it, or upgrade",
                        superblock.version, kFormatVersion));
  }
  superblock.cluster_uuid = in.Text<uint32_t>();
  for (uint64_t& part : superblock.hash_key) part = in.Little<uint64_t>();
  RETURN_IF_ERROR(CheckEnd(in, "superblock"));
  return superblock;
}

std::string EncodeSession(const SessionRecord& session) {
  std::string out;
  PutLittle(&out, session.nonce);
  PutLittle(&out, static_cast<uint8_t>(session.read_only ? 1 : 0));
  PutText<uint32_t>(&out, session.name);
  return out;
}

StatusOr<SessionRecord> ParseSession(std::string_view data) {
  ByteReader in(data);
  SessionRecord session;
  session.nonce = in.Little<uint64_t>();
  session.read_only = in.Little<uint8_t>() != 0;
  session.name = in.Text<uint32_t>();
  RETURN_IF_ERROR(CheckEnd(in, "session"));
  return session;
}

std::string EncodeReply(const ReplyRecord& record) {
  std::string out;
  out.reserve(sizeof record.sequence + record.encoded.size());
  PutLittle(&out, record.sequence);
  out += record.encoded;
  return out;
}

StatusOr<ReplyRecord> ParseReply(std::string_view data) {
  ByteReader in(data);
  ReplyRecord record;
  record.sequence = in.Little<uint64_t>();
  if (!in.ok() || record.sequence == 0)
    return absl::DataLossError(absl::StrFormat("damaged reply record: %d bytes", data.size()));
  record.encoded = std::string(data.substr(sizeof record.sequence));
  return record;
}

std::string EncodeDestroyAt(const DestroyAtRecord& record) { return EncodeNumbers(record.stripes); }

StatusOr<DestroyAtRecord> ParseDestroyAt(std::string_view data) {
  DestroyAtRecord record;
  ASSIGN_OR_RETURN(record.stripes, ParseNumbers("destroy", data));
  return record;
}

std::string EncodeDestroy(const DestroyRecord& record) { return EncodeNumbers(record.groups); }

StatusOr<DestroyRecord> ParseDestroy(std::string_view data) {
  DestroyRecord record;
  ASSIGN_OR_RETURN(record.groups, ParseNumbers("destroy", data));
  return record;
}

std::string EncodeTruncate(const TruncateRecord& record) {
  std::string out;
  PutLittle(&out, kTruncateVersion);
  PutLittle(&out, record.size);
  PutLittle(&out, record.generation);
  PutLittle(&out, record.object_sequence);
  PutLittle(&out, record.session);
  PutLittle(&out, record.sequence);
  return out;
}

StatusOr<TruncateRecord> ParseTruncate(std::string_view data) {
  ByteReader in(data);
  TruncateRecord record;
  if (data.size() == sizeof(record.size)) {  // written before there was a version
    record.size = in.Little<uint64_t>();
    return record;
  }
  const uint8_t version = in.Little<uint8_t>();
  if (version != kTruncateVersion) return Damaged("truncate", absl::StrCat("its version is ", version));
  record.size = in.Little<uint64_t>();
  record.generation = in.Little<uint32_t>();
  record.object_sequence = in.Little<uint64_t>();
  record.session = in.Little<uint64_t>();
  record.sequence = in.Little<uint64_t>();
  RETURN_IF_ERROR(CheckEnd(in, "truncate"));
  return record;
}

std::string EncodeNewObjects(const NewObjectsRecord& record) { return EncodeNumbers(record.groups); }

StatusOr<NewObjectsRecord> ParseNewObjects(std::string_view data) {
  NewObjectsRecord record;
  ASSIGN_OR_RETURN(record.groups, ParseNumbers("new objects", data));
  if (record.groups.empty()) return Damaged("new objects", "empty");
  return record;
}

std::string EncodeMoved(const MovedRecord& record) {
  std::string out;
  PutFid(&out, record.fid);
  return out + EncodeNumbers(record.groups);
}

StatusOr<MovedRecord> ParseMoved(std::string_view data) {
  constexpr size_t kFidBytes = 16;
  ByteReader in(data.substr(0, kFidBytes));
  MovedRecord record;
  record.fid = in.ReadFid();
  if (!in.ok()) return absl::DataLossError(absl::StrFormat("damaged moved record: %d bytes", data.size()));
  ASSIGN_OR_RETURN(record.groups, ParseNumbers("moved", data.substr(kFidBytes)));
  return record;
}

std::string EncodeRebalance(const RebalanceRecord& record) {
  std::string out;
  PutLittle(&out, kRebalanceVersion);
  PutLittle(&out, record.threshold);
  PutLittle(&out, record.run);
  PutLittle(&out, record.first_sequence);
  return out;
}

StatusOr<RebalanceRecord> ParseRebalance(std::string_view data) {
  ByteReader in(data);
  const uint8_t version = in.Little<uint8_t>();
  if (version != kRebalanceVersion) return Damaged("rebalance", absl::StrCat("its version is ", version));
  RebalanceRecord record;
  record.threshold = in.Little<uint32_t>();
  record.run = in.Little<uint64_t>();
  record.first_sequence = in.Little<uint64_t>();
  RETURN_IF_ERROR(CheckEnd(in, "rebalance"));
  if (record.threshold == 0 || record.threshold > kMostRebalanceThreshold)
    return Damaged("rebalance", absl::StrCat("a threshold of ", record.threshold));
  return record;
}

std::string EncodeNumber(uint64_t value) {
  std::string out;
  PutLittle(&out, value);
  return out;
}

StatusOr<uint64_t> ParseNumber(std::string_view data) {
  ByteReader in(data);
  uint64_t value = in.Little<uint64_t>();
  RETURN_IF_ERROR(CheckEnd(in, "number"));
  return value;
}

proto::Attr ToProto(const Inode& inode) {
  proto::Attr attr;
  *attr.mutable_fid() = nacre::ToProto(inode.fid);
  attr.set_mode(inode.mode);
  attr.set_nlink(inode.nlink);
  attr.set_uid(inode.uid);
  attr.set_gid(inode.gid);
  attr.set_rdev(inode.rdev);
  attr.set_size(inode.size);
  attr.set_blocks(inode.blocks);
  *attr.mutable_atime() = nacre::ToProto(inode.atime);
  *attr.mutable_mtime() = nacre::ToProto(inode.mtime);
  *attr.mutable_ctime() = nacre::ToProto(inode.ctime);
  *attr.mutable_btime() = nacre::ToProto(inode.btime);
  attr.set_change(inode.change);
  if (S_ISDIR(inode.mode) || inode.nlink == 1) *attr.mutable_parent() = nacre::ToProto(inode.parent);
  attr.set_inline_data(inode.inline_data);
  attr.set_has_xattrs(inode.xattrs > 0);
  attr.set_layout_generation(inode.layout.generation);
  return attr;
}

proto::Layout ToProto(const Layout& layout) {
  proto::Layout out;
  out.set_generation(layout.generation);
  out.set_object_sequence(layout.object_sequence);
  for (const LayoutComponent& component : layout.components) {
    proto::Component* c = out.add_components();
    c->set_end(component.end);
    c->set_stripe_size(component.stripe_size);
    for (uint32_t group : component.groups) c->add_ost_group(group);
  }
  return out;
}

proto::LayoutTemplate ToProto(const LayoutTemplate& layout) {
  proto::LayoutTemplate out;
  for (const TemplateComponent& component : layout) {
    proto::TemplateComponent* c = out.add_components();
    c->set_end(component.end);
    c->set_stripe_size(component.stripe_size);
    c->set_stripe_count(component.stripe_count);
    c->set_copies(component.copies);
  }
  return out;
}

std::vector<uint32_t> StripeGroups(const Layout& layout) {
  std::vector<uint32_t> groups;
  for (const LayoutComponent& component : layout.components) {
    groups.insert(groups.end(), component.groups.begin(), component.groups.end());
  }
  return groups;
}

Layout LayoutOfObjects(uint64_t object_sequence, std::vector<uint32_t> groups) {
  Layout layout;
  layout.object_sequence = object_sequence;
  layout.components.resize(1);
  layout.components[0].groups = std::move(groups);
  return layout;
}

}  // namespace nacre::mds
