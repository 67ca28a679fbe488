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

Touched InodeTouched(const Inode& inode, bool removed) {
  return {CoveringDirectory(inode), S_ISREG(inode.mode) ? inode.fid : Fid{}, removed};
}

void AddInode(Mds& mds, const Fid& fid, std::vector<Touched>* changes) {
  auto inode = fid ? mds.tables->GetInode(fid) : absl::NotFoundError("none");
  if (inode.ok()) changes->push_back(InodeTouched(**inode, false));
}

// Adds what an entry names: a directory, whose own attributes change with its entry, or a file. `removed`:
// the entry goes.
void AddNamed(Mds& mds, const Fid& parent, const std::string& name, bool removed,
              std::vector<Touched>* changes) {
  auto entry = mds.tables->FindEntry(parent, name);
  if (!entry.ok() || (entry->type != DT_DIR && entry->type != DT_REG)) return;
  auto inode = mds.tables->GetInode(entry->fid);
  if (inode.ok()) changes->push_back(InodeTouched(**inode, removed && (*inode)->nlink == 1));
}

}  // namespace

Fid CoveringDirectory(const Inode& inode) {
  if (S_ISDIR(inode.mode)) return inode.fid;
  return inode.nlink == 1 ? inode.parent : Fid{};
}

std::vector<Touched> TouchedBy(Mds& mds, const proto::MetadataRequest& request) {
  std::vector<Touched> changed;
  switch (request.op_case()) {
    case proto::MetadataRequest::kMknod:
      changed.push_back({FromProto(request.mknod().parent())});
      break;
    case proto::MetadataRequest::kCreate:
      changed.push_back({FromProto(request.create().parent())});
      break;
    case proto::MetadataRequest::kUnlink: {
      const Fid parent = FromProto(request.unlink().parent());
      changed.push_back({parent});
      AddNamed(mds, parent, request.unlink().name(), /*removed=*/true, &changed);
      break;
    }
    case proto::MetadataRequest::kRename: {
      const proto::Rename& rename = request.rename();
      const Fid from = FromProto(rename.parent()), to = FromProto(rename.new_parent());
      changed.push_back({from});
      changed.push_back({to});
      AddNamed(mds, from, rename.name(), /*removed=*/false, &changed);
      AddNamed(mds, to, rename.new_name(), /*removed=*/true, &changed);
      break;
    }
    case proto::MetadataRequest::kLink:
      changed.push_back({FromProto(request.link().parent())});
      break;
    default:
      break;
  }
  AddInode(mds, ChangedInode(request), &changed);
  return changed;  // the commit says what is missing
}

ChangeGuard::ChangeGuard(MdsPtr mds, SessionId changer, For whom)
    : mds_(std::move(mds)), changer_(changer), whom_(whom) {}

ChangeGuard::~ChangeGuard() {
  Unpin();
  for (const Covered& covered : covered_) mds_->leases.EndChange(covered.inode, IsBeside(covered));
}

bool ChangeGuard::IsBeside(const Covered& covered) const { return covered.file && whom_ == For::kBeside; }

bool ChangeGuard::HasOutlived(const LeaseGrant& grant) const {
  const SessionPtr holder = mds_->sessions.Find(grant.session);
  return holder != nullptr && holder->outlived();
}

bool ChangeGuard::Has(const Fid& inode) const {
  return std::ranges::any_of(covered_, [&](const Covered& covered) { return covered.inode == inode; });
}

// --- what is needed ---

void ChangeGuard::Need(const Covered& wanted) {
  const bool has = std::ranges::any_of(covered_, [&](const Covered& covered) {
    return covered.inode == wanted.inode && (covered.late || !wanted.late);
  });
  if (!has) missing_.push_back(wanted);
}

void ChangeGuard::NeedDirectory(const Fid& directory) {
  if (directory) Need({directory});
}

void ChangeGuard::NeedFile(const Fid& file, bool removed) {
  if (removed && mds_->options.plant_unasked_removal) return;
  if (file) Need({file, true, WaitsForLateData() && !removed});
}

void ChangeGuard::NeedAll(const std::vector<Touched>& changes) {
  for (const Touched& change : changes) {
    NeedFile(change.file, change.removed);
    const bool own = change.file && mds_->leases.HoldsWrite(changer_, change.file);
    if (!own) NeedDirectory(change.directory);
  }
}

// Whether the changer has WRITE of the file, and keeps it until the guard is destroyed.
bool ChangeGuard::PinOwn(const Fid& file) {
  if (!file) return false;
  const std::optional<LeaseGrant> lease = mds_->leases.Pin(changer_, file);
  if (lease) pinned_.push_back(*lease);
  return lease.has_value();
}

void ChangeGuard::Unpin() {
  for (const LeaseGrant& lease : std::exchange(pinned_, {})) mds_->leases.Unpin(lease);
}

bool ChangeGuard::CoversAll(const Transaction& transaction) {
  for (const Touched& change : transaction.Changes()) {
    NeedFile(change.file, change.removed);
    if (!PinOwn(change.file)) NeedDirectory(change.directory);
    was_beside_others_ |= whom_ == For::kBeside && HasWriter(*mds_, changer_, change.file);
  }
  return missing_.empty();
}

bool ChangeGuard::CoversFile(const Fid& file) {
  NeedFile(file, /*removed=*/false);
  return missing_.empty();
}

// --- covering ---

Task<Status> ChangeGuard::Cover(const std::vector<Touched>& changes) {
  NeedAll(changes);
  std::erase_if(missing_, [this](const Covered& one) { return !mds_->tables->GetInode(one.inode).ok(); });
  if (missing_.empty()) co_return OkStatus();
  co_return co_await CoverMissing();
}

bool ChangeGuard::TryCover(const std::vector<Touched>& changes) {
  NeedAll(changes);
  return std::ranges::all_of(BlockMissing(),
                             [this](const Covered& covered) { return ConflictsOf(covered).empty(); });
}

std::vector<LeaseGrant> ChangeGuard::ConflictsOf(const Covered& covered) const {
  const proto::LeaseMode mode = covered.file ? proto::LEASE_READ : proto::LEASE_WRITE;
  std::vector<LeaseGrant> conflicts = mds_->leases.Conflicts(covered.inode, changer_, mode);
  const bool beside = IsBeside(covered);
  std::erase_if(conflicts, [&](const LeaseGrant& grant) {
    return (grant.late && !covered.late) || (beside && grant.mode == proto::LEASE_SHARED) ||
           (whom_ == For::kSizeLeftBehind && HasOutlived(grant));
  });
  return conflicts;
}

// From now on nobody is granted a lease of what was missing; returns that.
std::vector<ChangeGuard::Covered> ChangeGuard::BlockMissing() {
  std::vector<Covered> blocked;
  for (const Covered& wanted : std::exchange(missing_, {})) {
    Need(wanted);
    if (missing_.empty()) continue;  // it was there twice
    missing_.clear();
    mds_->leases.BeginChange(wanted.inode, changer_, IsBeside(wanted));
    covered_.push_back(wanted);
    blocked.push_back(wanted);
  }
  return blocked;
}

Task<Status> ChangeGuard::CoverMissing() {
  Unpin();  // clients are waited for
  bool held = false;
  for (const Covered& covered : BlockMissing()) {
    if (mds_->options.plant_uncovered || ConflictsOf(covered).empty()) continue;
    const proto::LeaseMode none = covered.file ? proto::LEASE_WRITE : proto::LEASE_READ;
    mds_->leases.GrantNoneUntil(covered.inode, none,
                                mds_->peace.BeginsAt(mds_->env.clock.Now(), covered.inode));
    held = true;
  }
  if (changer_ != 0 && mds_->Recovering() && mds_->sessions.Count() > 1) {
    std::optional<Session::Wait> wait;
    if (SessionPtr session = mds_->sessions.Find(changer_)) wait.emplace(std::move(session));
    co_await mds_->sessions.recovery().Wait();
  } else if (!held) {
    co_return OkStatus();
  }
  // A session that gives a directory back may get a lease first, for data of a file in it that comes late.
  for (;;) {
    std::vector<LeaseGrant> conflicts;
    for (const Covered& covered : covered_)
      std::ranges::move(ConflictsOf(covered), std::back_inserter(conflicts));
    if (conflicts.empty() || mds_->options.plant_uncovered) co_return OkStatus();
    CO_RETURN_IF_ERROR(co_await RecallGrants(mds_, changer_, std::move(conflicts)));
  }
}

}  // namespace nacre::mds
