#include <absl/strings/escaping.h>
#include <sys/stat.h>

#include <algorithm>

#include "server/cluster/ost_record.h"
#include "server/kv/kv_pages.h"
#include "server/metadata/check.h"
#include "server/metadata/keys.h"
#include "server/metadata/layout.h"

namespace nacre::mds {

// To be destroyed, or written for a file that a restart withdraws them from, or left by one.
bool ObjectCheck::IsLeaving(OstIndex ost, const ObjectId& id) {
  return store_.Get(DestroyAtKeyOf(ost, id.sequence)).ok() ||
         store_.Get(NumberKey(Table::kDestroyByFile, id.sequence)).ok() ||
         store_.Get(NumberKey(Table::kNewObjects, id.sequence)).ok() ||
         store_.Get(NumberKey(Table::kMoved, id.sequence)).ok();
}

// Says what is wrong with this object; empty if nothing is.
StatusOr<std::string> ObjectCheck::Judge(OstIndex ost, const proto::ListedObject& listed) {
  const ObjectId id = FromProto(listed.object());
  const Fid parent = FromProto(listed.parent());
  const std::string place = absl::StrFormat("object %s on OST %d", id.ToString(), ost);
  if (IsLeaving(ost, id)) return std::string();
  auto data = store_.Get(FidKey(Table::kInode, parent));
  if (absl::IsNotFound(data.status()))
    return absl::StrFormat("%s: its file %s does not exist", place, parent.ToString());
  RETURN_IF_ERROR(data.status());
  ASSIGN_OR_RETURN(Inode inode, ParseInode(parent, *data));
  if (!S_ISREG(inode.mode) || inode.inline_data || inode.layout.object_sequence != id.sequence) {
    return absl::StrFormat("%s: file %s does not use it", place, parent.ToString());
  }
  std::vector<uint32_t> groups = StripeGroups(inode.layout);
  if (id.stripe >= groups.size() || groups[id.stripe] != ost) {
    return absl::StrFormat("%s: the layout of %s has stripe %d elsewhere", place, parent.ToString(),
                           id.stripe);
  }
  seen_[parent] = true;
  return std::string();
}

Status ObjectCheck::AddObject(OstIndex ost, const proto::ListedObject& listed) {
  if (gone_.contains(ost)) return OkStatus();
  ASSIGN_OR_RETURN(std::string problem, Judge(ost, listed));
  if (problem.empty()) return OkStatus();
  report_.Add(std::move(problem));
  orphans_[listed.object().sequence()][ost].push_back(listed.object().stripe());
  return OkStatus();
}

Status ObjectCheck::AddOst(OstIndex ost, const std::string& uuid) {
  auto value = store_.Get(cluster::OstKey(ost));
  if (absl::IsNotFound(value.status())) return OkStatus();
  RETURN_IF_ERROR(value.status());
  ASSIGN_OR_RETURN(cluster::OstRecord known, cluster::ParseOst(*value));
  if (cluster::IsGone(known.use)) {
    gone_.insert(ost);
    return OkStatus();
  }
  // Of several members any that is in sync has all objects.
  const cluster::OstMember* member = known.Find(uuid);
  if (member != nullptr && member->in_sync()) looked_at_.insert(ost);
  return OkStatus();
}

bool ObjectCheck::AllLookedAt(const Inode& inode) const {
  for (uint32_t group : StripeGroups(inode.layout)) {
    if (!looked_at_.contains(group)) return false;
  }
  return true;
}

// By its primary link; empty if it has none, or the way up is damaged.
std::string ObjectCheck::PathOf(Inode inode) {
  std::string path;
  for (int depth = 0; inode.fid != kRootFid; ++depth) {
    auto entries = store_.Get(EntryKey(inode.parent, inode.parent_cookie & ~uint64_t{0xff}));
    auto parent = store_.Get(FidKey(Table::kInode, inode.parent));
    if (!entries.ok() || !parent.ok() || depth == kMaxDepth) return "";
    std::string name;
    for (const BucketEntry& entry : ParseBucket(*entries).value_or(Bucket())) {
      if (entry.fid == inode.fid && entry.index == (inode.parent_cookie & 0xff)) name = entry.name;
    }
    auto directory = ParseInode(inode.parent, *parent);
    if (name.empty() || !directory.ok()) return "";
    path = "/" + absl::CHexEscape(name) + path;
    inode = *std::move(directory);
  }
  return path;
}

void ObjectCheck::NoteLost(Inode inode, bool repair, KvBatch* fixes) {
  const bool empties = repair && AllLookedAt(inode);
  report_.Add(absl::StrFormat(
      "file %s (%s) counts %d blocks but none of its objects exists: its %d bytes are lost%s",
      inode.fid.ToString(), PathOf(inode), inode.blocks, inode.size, empties ? "; it is empty now" : ""));
  if (!empties) return;
  ++report_.repaired;
  inode.size = inode.blocks = 0;
  fixes->Put(FidKey(Table::kInode, inode.fid), EncodeInode(inode));
}

Task<Status> ObjectCheck::QueueOrphans(bool repair) {
  if (!repair || orphans_.empty()) co_return OkStatus();
  KvBatch batch;
  for (const auto& [sequence, by_ost] : orphans_) {
    for (const auto& [ost, stripes] : by_ost) {
      batch.Put(DestroyAtKeyOf(ost, sequence), EncodeDestroyAt({stripes}));
      report_.repaired += stripes.size();
    }
  }
  co_return co_await store_.Commit(std::move(batch));
}

Task<StatusOr<CheckReport>> ObjectCheck::Finish(bool repair) {
  KvBatch fixes;
  CO_RETURN_IF_ERROR(ForEachEntry(store_, TableKey(Table::kInode), [&](const KvEntry& entry) -> Status {
    ByteReader key(std::string_view(entry.key).substr(1));
    const Fid fid = key.ReadFid();
    ASSIGN_OR_RETURN(Inode inode, ParseInode(fid, entry.value));
    // Objects that name a wrong file but belong to this one, or lie on a wrong OST: nothing to destroy.
    if (S_ISREG(inode.mode) && !inode.inline_data) orphans_.erase(inode.layout.object_sequence);
    bool has_objects = S_ISREG(inode.mode) && !inode.inline_data && inode.blocks > 0;
    if (has_objects && !seen_.contains(fid)) NoteLost(std::move(inode), repair, &fixes);
    ++report_.inodes;
    return OkStatus();
  }));
  if (!fixes.empty()) CO_RETURN_IF_ERROR(co_await store_.Commit(std::move(fixes)));
  CO_RETURN_IF_ERROR(co_await QueueOrphans(repair));
  co_return std::move(report_);
}

}  // namespace nacre::mds
