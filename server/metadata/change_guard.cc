#include "server/metadata/change_guard.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "rpc/convert.h"
#include "rpc/mutation.h"
#include "server/metadata/directory_leases.h"
#include "server/metadata/mds.h"
#include "server/metadata/recall.h"

namespace nacre::mds {
namespace {

void AddCoveringOf(Mds& mds, const Fid& fid, std::vector<Fid>* directories) {
  auto inode = mds.tables->GetInode(fid);
  if (inode.ok()) directories->push_back(CoveringDirectory(**inode));
}

// A directory that an entry means: its own attributes change when the entry does.
void AddDirectoryNamed(Mds& mds, const Fid& parent, const std::string& name, std::vector<Fid>* directories) {
  auto entry = mds.tables->FindEntry(parent, name);
  if (entry.ok() && entry->type == DT_DIR) directories->push_back(entry->fid);
}

// A file that the entry means and that somebody has late data of.
void AddLate(Mds& mds, const Fid& parent, const std::string& name, std::vector<Fid>* changed) {
  auto entry = mds.tables->FindEntry(parent, name);
  if (entry.ok() && entry->type == DT_REG && HasWriter(mds, 0, entry->fid)) changed->push_back(entry->fid);
}

}  // namespace

Fid CoveringDirectory(const Inode& inode) {
  if (S_ISDIR(inode.mode)) return inode.fid;
  return inode.nlink == 1 ? inode.parent : Fid{};
}

std::vector<Fid> DirectoriesChangedBy(Mds& mds, const proto::MetadataRequest& request) {
  std::vector<Fid> changed;
  switch (request.op_case()) {
    case proto::MetadataRequest::kMknod:
      changed.push_back(FromProto(request.mknod().parent()));
      break;
    case proto::MetadataRequest::kCreate:
      changed.push_back(FromProto(request.create().parent()));
      break;
    case proto::MetadataRequest::kUnlink: {
      const Fid parent = FromProto(request.unlink().parent());
      changed.push_back(parent);
      if (request.unlink().directory()) AddDirectoryNamed(mds, parent, request.unlink().name(), &changed);
      break;
    }
    case proto::MetadataRequest::kRename: {
      const proto::Rename& rename = request.rename();
      const Fid from = FromProto(rename.parent()), to = FromProto(rename.new_parent());
      changed = {from, to};
      AddDirectoryNamed(mds, from, rename.name(), &changed);
      AddDirectoryNamed(mds, to, rename.new_name(), &changed);
      AddLate(mds, from, rename.name(), &changed);
      break;
    }
    case proto::MetadataRequest::kLink:
      changed.push_back(FromProto(request.link().parent()));
      break;
    default:
      break;
  }
  const Fid fid = ChangedInode(request);
  if (fid) AddCoveringOf(mds, fid, &changed);
  if (fid && HasWriter(mds, 0, fid)) changed.push_back(fid);
  return changed;  // the commit says what is missing
}

ChangeGuard::ChangeGuard(MdsPtr mds, SessionId changer) : mds_(std::move(mds)), changer_(changer) {}

ChangeGuard::~ChangeGuard() {
  for (const Fid& directory : covered_) mds_->leases.EndChange(directory);
}

bool ChangeGuard::Has(const Fid& directory) const {
  return std::find(covered_.begin(), covered_.end(), directory) != covered_.end();
}

bool ChangeGuard::Covers(const std::vector<Fid>& directories) {
  for (const Fid& directory : directories) {
    if (!directory || Has(directory)) continue;
    missing_.push_back(directory);
  }
  return missing_.empty();
}

Task<Status> ChangeGuard::Cover(std::vector<Fid> directories) {
  std::erase_if(directories, [this](const Fid& fid) { return fid && !mds_->tables->GetInode(fid).ok(); });
  if (Covers(directories)) co_return OkStatus();
  co_return co_await CoverMissing();
}

bool ChangeGuard::TryCover(const std::vector<Fid>& directories) {
  (void)Covers(directories);
  for (const Fid& directory : BlockMissing()) {
    if (mds_->leases.HasConflict(directory, changer_, proto::LEASE_WRITE)) return false;
  }
  return true;
}

// From now on nobody is granted a lease of what was missing; returns that.
std::vector<Fid> ChangeGuard::BlockMissing() {
  std::vector<Fid> blocked;
  for (const Fid& directory : std::exchange(missing_, {})) {
    if (Has(directory)) continue;
    mds_->leases.BeginChange(directory, changer_);
    covered_.push_back(directory);
    blocked.push_back(directory);
  }
  return blocked;
}

Task<Status> ChangeGuard::CoverMissing() {
  std::vector<LeaseGrant> held;
  for (const Fid& directory : BlockMissing()) {
    if (mds_->options.plant_uncovered) continue;
    std::vector<LeaseGrant> conflicts = mds_->leases.Conflicts(directory, changer_, proto::LEASE_WRITE);
    if (!conflicts.empty())
      mds_->leases.GrantNoneUntil(directory, proto::LEASE_READ, mds_->env.clock.Now() + mds_->options.peace);
    held.insert(held.end(), conflicts.begin(), conflicts.end());
  }
  if (changer_ != 0 && mds_->Recovering() && mds_->sessions.Count() > 1) {
    std::optional<Session::Wait> wait;
    if (SessionPtr session = mds_->sessions.Find(changer_)) wait.emplace(std::move(session));
    co_await mds_->sessions.recovery().Wait();
  } else if (held.empty()) {
    co_return OkStatus();
  }
  co_return co_await RecallAll(mds_, changer_, covered_);
}

}  // namespace nacre::mds
