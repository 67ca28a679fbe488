#include <sys/stat.h>

#include <algorithm>

#include "server/kv/kv_pages.h"
#include "server/metadata/check.h"
#include "server/metadata/keys.h"
#include "server/metadata/layout.h"

namespace nacre::mds {

// To be destroyed, or written by a move-out that a restart withdraws.
bool ObjectCheck::IsLeaving(OstIndex ost, const ObjectId& id) {
  return store_.Get(DestroyAtKeyOf(ost, id.sequence)).ok() ||
         store_.Get(NumberKey(Table::kDestroyByFile, id.sequence)).ok() ||
         store_.Get(NumberKey(Table::kMoveOut, id.sequence)).ok();
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
  ASSIGN_OR_RETURN(std::string problem, Judge(ost, listed));
  if (problem.empty()) return OkStatus();
  report_.Add(std::move(problem));
  orphans_[listed.object().sequence()][ost].push_back(listed.object().stripe());
  return OkStatus();
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
  CO_RETURN_IF_ERROR(ForEachEntry(store_, TableKey(Table::kInode), [this](const KvEntry& entry) -> Status {
    ByteReader key(std::string_view(entry.key).substr(1));
    const Fid fid = key.ReadFid();
    ASSIGN_OR_RETURN(Inode inode, ParseInode(fid, entry.value));
    // Objects that name a wrong file but belong to this one, or lie on a wrong OST: nothing to destroy.
    if (S_ISREG(inode.mode) && !inode.inline_data) orphans_.erase(inode.layout.object_sequence);
    bool has_objects = S_ISREG(inode.mode) && !inode.inline_data && inode.blocks > 0;
    if (has_objects && !seen_.contains(fid)) {
      report_.Add(absl::StrFormat("file %s counts %d blocks but none of its objects exists", fid.ToString(),
                                  inode.blocks));
    }
    ++report_.inodes;
    return OkStatus();
  }));
  CO_RETURN_IF_ERROR(co_await QueueOrphans(repair));
  co_return std::move(report_);
}

}  // namespace nacre::mds
