// Leases of directories, and WRITE of files: asking for them, learning under them, and giving them back. They
// are what lets a client answer without the MDS.
#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "client/core.h"

namespace nacre::client {
namespace {

// Returns when the MDS has answered the closes of the file that it was sent.
Task<void> AwaitCloses(InodePtr inode) {
  OneShot<Unit> answered;
  {
    std::lock_guard lock(inode->mutex);
    if (inode->closes_asked == 0) co_return;
    inode->close_waiters.push_back(answered);
  }
  co_await answered.Wait();
}

}  // namespace

// --- trust ---

bool Core::Trusts(const Inode& inode) const { return inode.IsCovered() && LeasesGood(); }

bool Core::TrustsNames(const Inode& directory) const {
  return directory.scope != nullptr && directory.scope->good() && LeasesGood();
}

// With behind_mutex_ and the mutex of the inode held: whether a change of it, and of its names, may be
// answered before the MDS has done it: what is known of it is true, and nothing else changes it. `settling`:
// how many of the changes that the MDS decides are the caller's.
bool Core::MayChangeEarly(const Inode& inode, uint32_t settling) const {
  if (!inode.attr_known || inode.settling > settling) return false;
  return inode.own_changes == 0 && inode.IsCovered() && inode.covered->writes() &&
         !changing_unknown_.contains(FromProto(inode.attr.parent()));
}

bool Core::WantsScopes() const { return options_.caching; }

// --- learning ---

Learning Core::BeginLearning() {
  ++learners_;
  Learning learning;
  learning.event = ++events_;
  learning.held = times_held_;
  learning.present = std::shared_ptr<void>(this, [](Core* core) { core->EndLearning(); });
  return learning;
}

// No grant of a lease that was given up can be on its way any more.
void Core::EndLearning() {
  if (--learners_ > 0) return;
  std::lock_guard lock(mutex_);
  if (learners_ == 0) given_up_.clear();
}

// The lease of the directory, or the file, under which the answer may be learned: it was held when the
// request was sent, or came with the answer. (A request that was sent after another one may be carried out
// before it.)
ScopePtr Core::ScopeFor(const Learning& learning, const Fid& directory) {
  InodePtr inode = directory ? inodes_->Find(directory) : nullptr;
  if (inode == nullptr) return nullptr;
  std::lock_guard lock(inode->mutex);
  const ScopePtr& scope = inode->scope;
  if (scope == nullptr || !scope->good()) return nullptr;
  const bool came =
      std::find(learning.granted.begin(), learning.granted.end(), scope->lease()) != learning.granted.end();
  return came || scope->since <= learning.event ? scope : nullptr;
}

// Takes over the leases that came with an answer. Those that are held already are not told again.
void Core::TakeScopes(Learning* learning, const proto::MetadataReply& reply) {
  std::vector<ScopePtr> ended;
  for (const proto::Lease& lease : reply.directory_leases()) TakeScope(learning, lease, false, &ended);
  if (reply.has_file_lease()) TakeScope(learning, reply.file_lease(), true, &ended);
  if (learning->granted.empty()) return;
  for (ScopePtr& scope : ended) ReturnScope(nullptr, scope);  // what was opened under it has to be told
  ReturnDroppedScopes();
}

// `ended`: gets those that are to be returned, or are at the MDS already.
void Core::TakeScope(Learning* learning, const proto::Lease& lease, bool of_file,
                     std::vector<ScopePtr>* ended) {
  InodePtr inode = inodes_->Get(FromProto(lease.resource()));
  learning->granted.push_back(lease.id());
  std::lock_guard lock(mutex_);
  ScopePtr before = inodes_->KeepScope(lease.id());
  // It may have been revoked before it came, or be on its way back; or a Reclaim that did not name it has
  // ended it.
  std::lock_guard inode_lock(inode->mutex);
  const bool gone = given_up_.contains(lease.id()) && !options_.plant_late_grant;
  if (gone || times_held_ != learning->held) {
    if (before != nullptr) ended->push_back(std::move(before));
    return;
  }
  const bool writes = lease.mode() == proto::LEASE_WRITE;
  if (inode->scope != nullptr && inode->scope->lease() == 0) inode->scope->Name(lease.id());
  if (inode->scope != nullptr && inode->scope->lease() == lease.id()) {
    if (writes) inode->scope->AllowWrites();
    if (before != nullptr) inode->scope->Inherit(*before);
    return;
  }
  if (inode->scope != nullptr) ended->push_back(inode->EndScope());
  if (before == nullptr) before = inode->ended;
  const uint64_t event = ++events_;
  inode->scope = of_file ? std::make_shared<Scope>(inode->fid, lease.id(), event, unknown_moves_)
                         : std::make_shared<Scope>(inode->fid, lease.id(), event, environment_.clock.Now(),
                                                   inode->moves);
  if (writes) inode->scope->AllowWrites();
  if (before != nullptr) inode->scope->Inherit(*before);
  inode->names.Forget();  // what was known before may be out of date
  inode->covered.reset();
  if (!of_file || inode->write_opens > 0) return;
  given_up_.insert(lease.id());  // it was closed meanwhile
  ended->push_back(inode->EndScope());
}

// The attributes are true as long as the lease that covers them is good.
void Core::Cover(const Learning& learning, Inode& inode, const proto::Attr& learned) {
  CoverSince(learning.event, ScopeCovering(learning, learned), inode, learned);
}

ScopePtr Core::ScopeCovering(const Learning& learning, const proto::Attr& learned) {
  if (S_ISDIR(learned.mode())) return ScopeFor(learning, FromProto(learned.fid()));
  ScopePtr own = S_ISREG(learned.mode()) ? ScopeFor(learning, FromProto(learned.fid())) : nullptr;
  if (own != nullptr) return own;
  return learned.nlink() == 1 ? ScopeFor(learning, FromProto(learned.parent())) : nullptr;
}

// Unless this client has changed the inode after `event`.
void Core::CoverSince(uint64_t event, ScopePtr scope, Inode& inode, const proto::Attr& learned) {
  if (scope == nullptr) return;
  std::lock_guard lock(inode.mutex);
  if (inode.own_changes > 0 || inode.changed > event) return;
  if (inode.attr_known && inode.attr.change() == learned.change()) inode.covered = std::move(scope);
}

// --- handles that the MDS does not know (open.cc) ---

// Its mutex is held.
bool Core::IsUntold(const Inode& inode) const {
  return inode.opened_under != nullptr && inode.opens > inode.told;
}

std::vector<InodePtr> Core::UntoldFiles() {
  std::set<Fid> fids;
  {
    std::lock_guard lock(mutex_);
    fids = untold_;
  }
  std::vector<InodePtr> files;
  for (const Fid& fid : fids) {
    if (InodePtr inode = inodes_->Find(fid)) files.push_back(std::move(inode));
  }
  return files;
}

// The inode's mutex is held, and the MDS has answered every close that it was sent: one that it did behind
// this would take a handle off that is named here. Names the told handles outside of a whole Reclaim, and
// those whose closes will be sent all the same.
void Core::NameOpens(Inode& inode, proto::OpenFile* open) {
  inode.overtold = true;
  ++inode.named;
  *open->mutable_fid() = ToProto(inode.fid);
  open->set_count(inode.told + inode.closing);
  open->set_write(inode.write_opens > 0);
}

// Returns when the MDS knows of the handles of these files, or has lost the stream: then the Reclaim that
// follows tells it.
Task<void> Core::TellOpens(uint64_t epoch, std::vector<InodePtr> files) {
  constexpr int kMost = 4000;  // in one message
  const uint64_t held = times_held_;
  while (!files.empty() && epoch == epoch_) {
    for (const InodePtr& inode : files) co_await AwaitCloses(inode);
    proto::MetadataRequest request;
    proto::Reclaim* part = request.mutable_reclaim();
    std::vector<InodePtr> left;
    for (const InodePtr& inode : files) {
      std::lock_guard lock(inode->mutex);
      if (!IsUntold(*inode)) continue;
      if (inode->closes_asked > 0 || part->opens_size() == kMost) {
        left.push_back(inode);
        continue;
      }
      inode->told = inode->opens;  // from here on a Reclaim names them, too
      NameOpens(*inode, part->add_opens());
    }
    files = std::move(left);
    if (part->opens_size() == 0) continue;
    (void)co_await session_->CallOnce(epoch, std::move(request),
                                      [this, held] { return times_held_ == held; });
  }
}

// A create was answered, and a Reclaim has gone to the MDS before its handle counted here: the MDS is told
// again, and until the last close too much rather than too little. If the stream is lost again, the next
// Reclaim does it.
Task<void> Core::NameHandle(InodePtr inode) {
  proto::MetadataRequest request;
  while (request.reclaim().opens_size() == 0) {
    co_await AwaitCloses(inode);
    std::lock_guard lock(inode->mutex);
    if (inode->closes_asked == 0) NameOpens(*inode, request.mutable_reclaim()->add_opens());
  }
  (void)co_await session_->CallOnce(epoch_, std::move(request));
}

Task<void> Core::TellOpensUnder(uint64_t epoch, uint64_t lease, ScopePtr scope) {
  std::vector<InodePtr> files;
  for (InodePtr& inode : UntoldFiles()) {
    std::lock_guard lock(inode->mutex);
    if (!IsUntold(*inode)) continue;
    const ScopePtr& under = inode->opened_under;
    if (under == scope || (lease != 0 && under->lease() == lease)) files.push_back(inode);
  }
  if (!files.empty() && !options_.plant_untold) co_await TellOpens(epoch, std::move(files));
}

// --- giving back ---

// All of them: what was learned under them need not be true any more, or nobody asks for it.
void Core::EndScopes() {
  std::vector<std::pair<InodePtr, ScopePtr>> ended;
  for (const InodePtr& inode : inodes_->All()) {
    std::lock_guard lock(inode->mutex);
    inode->covered.reset();
    if (inode->scope == nullptr) continue;
    inode->NoteLeaving(*inode->scope);
    ended.emplace_back(inode, inode->EndScope());
  }
  for (auto& [directory, scope] : ended) ReturnScope(std::move(directory), std::move(scope));
  ReturnDroppedScopes();
}

// Those of directories that were let go for want of memory. To make room for these directories others may be
// let go: all are returned.
void Core::ReturnDroppedScopes() {
  std::vector<std::pair<InodePtr, ScopePtr>> dropped;
  {
    std::lock_guard lock(mutex_);  // who looks for one finds it there or here (OwnChange::BeginIn)
    for (auto scopes = inodes_->TakeDroppedScopes(); !scopes.empty(); scopes = inodes_->TakeDroppedScopes()) {
      for (ScopePtr& scope : scopes) {
        InodePtr directory = inodes_->Get(scope->of);
        std::lock_guard inode_lock(directory->mutex);
        directory->NoteLeaving(*scope);
        if (directory->scope == nullptr) directory->ended = scope;
        dropped.emplace_back(std::move(directory), std::move(scope));
      }
    }
  }
  for (auto& [directory, scope] : dropped) ReturnScope(std::move(directory), std::move(scope));
}

void Core::ReturnScope(InodePtr directory, ScopePtr scope) {
  const uint64_t lease = scope->lease();
  Learning present = BeginLearning();
  if (lease != 0) {
    std::lock_guard lock(mutex_);
    given_up_.insert(lease);
  }
  Background(ReturnLease(epoch_, std::move(directory), lease, std::move(scope), std::move(present),
                         MetadataQueue::Hurry::kNo));
}

}  // namespace nacre::client
