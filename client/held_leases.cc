#include "client/held_leases.h"

#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "rpc/convert.h"

namespace nacre::client {
namespace {

// With the inode's mutex held, as EndRead.
Inode::Leaving* FindLeaving(Inode& inode, uint64_t lease) {
  auto it = std::ranges::find(inode.leaving, lease, &Inode::Leaving::lease);
  return it == inode.leaving.end() ? nullptr : &*it;
}

// Readers ask for another lease from now on.
void EndRead(Inode& inode, uint64_t lease) {
  ++inode.pages.recalls;
  if (inode.pages.lease == lease) inode.pages.lease = inode.pages.content = 0;
}

}  // namespace

HeldLeases::HeldLeases(InodeTable& inodes, Clock& clock, bool plant_late_grant)
    : inodes_(inodes), clock_(clock), plant_late_grant_(plant_late_grant) {}

// --- learning ---

Learning HeldLeases::BeginLearning() {
  ++learners_;
  Learning learning;
  learning.event = inodes_.NextEvent();
  learning.reclaims = reclaims_;
  learning.present = std::shared_ptr<void>(this, [](HeldLeases* leases) { leases->EndLearning(); });
  return learning;
}

// No grant of a lease that was given up can be on its way any more.
void HeldLeases::EndLearning() {
  if (--learners_ > 0) return;
  std::lock_guard lock(mutex_);
  if (learners_ == 0) given_up_.clear();
}

ScopePtr HeldLeases::For(const Learning& learning, const Fid& of) {
  InodePtr inode = of ? inodes_.Find(of) : nullptr;
  if (inode == nullptr) return nullptr;
  std::lock_guard lock(inode->mutex);
  const ScopePtr& scope = inode->scope;
  if (scope == nullptr || !scope->good()) return nullptr;
  const bool came =
      std::find(learning.granted.begin(), learning.granted.end(), scope->lease()) != learning.granted.end();
  return came || scope->since <= learning.event ? scope : nullptr;
}

ScopePtr HeldLeases::Covering(const Learning& learning, const proto::Attr& learned) {
  if (S_ISDIR(learned.mode())) return For(learning, FromProto(learned.fid()));
  ScopePtr own = S_ISREG(learned.mode()) ? For(learning, FromProto(learned.fid())) : nullptr;
  if (own != nullptr) return own;
  return learned.nlink() == 1 ? For(learning, FromProto(learned.parent())) : nullptr;
}

void HeldLeases::Cover(const Learning& learning, Inode& inode, const proto::Attr& learned) {
  CoverSince(learning.event, Covering(learning, learned), inode, learned);
}

void HeldLeases::CoverSince(uint64_t event, ScopePtr scope, Inode& inode, const proto::Attr& learned) {
  if (scope == nullptr) return;
  std::lock_guard lock(inode.mutex);
  if (inode.own_changes > 0 || inode.changed > event) return;
  if (inode.attr_known && inode.attr.change() == learned.change()) inode.covered = std::move(scope);
}

// --- taking over ---

std::vector<ScopePtr> HeldLeases::Take(Learning* learning, const proto::MetadataReply& reply) {
  std::vector<ScopePtr> ended;
  for (const proto::Lease& lease : reply.directory_leases()) TakeOne(learning, lease, false, &ended);
  if (reply.has_file_lease()) TakeOne(learning, reply.file_lease(), true, &ended);
  return ended;
}

void HeldLeases::TakeOne(Learning* learning, const proto::Lease& lease, bool of_file,
                         std::vector<ScopePtr>* ended) {
  InodePtr inode = inodes_.Get(FromProto(lease.resource()));
  learning->granted.push_back(lease.id());
  std::lock_guard lock(mutex_);
  ScopePtr before = inodes_.KeepScope(lease.id());
  // It may have been revoked before it came, or be on its way back; or a Reclaim that did not name it has
  // ended it.
  std::lock_guard inode_lock(inode->mutex);
  const bool gone = given_up_.contains(lease.id()) && !plant_late_grant_;
  if (gone || reclaims_ != learning->reclaims) {
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
  const uint64_t event = inodes_.NextEvent();
  inode->scope = of_file ? std::make_shared<Scope>(inode->fid, lease.id(), event, unknown_moves_)
                         : std::make_shared<Scope>(inode->fid, lease.id(), event, clock_.Now(), inode->moves);
  if (writes) inode->scope->AllowWrites();
  if (lease.mode() == proto::LEASE_SHARED) inode->scope->Share();
  if (before != nullptr) inode->scope->Inherit(*before);
  inode->names.Forget();  // what was known before may be out of date
  inode->covered.reset();
  if (!of_file || inode->write_opens > 0) return;
  given_up_.insert(lease.id());  // it was closed meanwhile
  ended->push_back(inode->EndScope());
}

bool HeldLeases::NameBorn(Inode& directory, const ScopePtr& born, uint64_t lease) {
  std::lock_guard lock(mutex_);
  std::lock_guard guard(directory.mutex);
  if (born->lease() != 0) return false;  // it has been asked back already
  if (lease != 0) {
    born->Name(lease);
    if (!born->good()) directory.NoteLeaving(*born);
    return false;
  }
  if (directory.scope != born) return false;
  directory.EndScope();
  return true;
}

bool HeldLeases::TakeLate(Inode& file, uint64_t lease, uint64_t reclaims) {
  std::lock_guard lock(mutex_);
  std::lock_guard inode_lock(file.mutex);
  if (reclaims_ != reclaims) return false;
  given_up_.insert(lease);
  const bool waits = file.data_scope != nullptr && !file.data_scope->good();
  file.leaving.push_back({.lease = lease, .mode = proto::LEASE_WRITE, .data = waits, .late = true});
  return true;
}

// --- ending ---

std::optional<ScopePtr> HeldLeases::EndRevoked(const InodePtr& inode, uint64_t lease) {
  std::lock_guard lock(mutex_);
  std::lock_guard inode_lock(inode->mutex);
  if (FindLeaving(*inode, lease) != nullptr) {
    EndRead(*inode, lease);  // it was granted once more
    return std::nullopt;
  }
  given_up_.insert(lease);
  ScopePtr scope;
  // The answer that names it may be on its way still.
  if (inode->scope != nullptr && inode->scope->lease() == 0) inode->scope->Name(lease);
  if (inode->scope != nullptr && inode->scope->lease() == lease) scope = inode->EndScope();
  // That answer may also have been lost: the repeated request is answered without it (NameBorn).
  if (inode->scope == nullptr && inode->ended != nullptr && inode->ended->lease() == 0) {
    scope = inode->ended;
    scope->Name(lease);
  }
  EndRead(*inode, lease);
  if (scope == nullptr || scope->of_file()) inode->pages.recalled = clock_.Now();
  inode->leaving.push_back({lease, scope != nullptr ? scope->mode() : proto::LEASE_READ});
  return scope;
}

void HeldLeases::TakeRead(Inode& file, uint64_t lease) {
  Inode::Leaving* const leaving = FindLeaving(file, lease);
  if (leaving != nullptr && leaving->forgotten) return;
  if (leaving != nullptr) leaving->again = true;
  file.pages.lease = lease;
}

bool HeldLeases::EndReadAgain(Inode& file, uint64_t lease) {
  std::lock_guard lock(file.mutex);
  Inode::Leaving* const leaving = FindLeaving(file, lease);
  if (leaving == nullptr) return false;
  leaving->forgotten = !leaving->again;
  if (leaving->again) EndRead(file, lease);
  return std::exchange(leaving->again, false);
}

ScopePtr HeldLeases::EndOfFile(Inode& file) {
  std::lock_guard lock(mutex_);
  std::lock_guard inode_lock(file.mutex);
  if (file.write_opens > 0 || file.scope == nullptr || !file.scope->of_file()) return nullptr;
  file.NoteLeaving(*file.scope);
  ScopePtr ended = file.EndScope();
  given_up_.insert(ended->lease());
  return ended;
}

void HeldLeases::NoteGivenUp(uint64_t lease) {
  std::lock_guard lock(mutex_);
  given_up_.insert(lease);
}

HeldLeases::Ended HeldLeases::EndAll() {
  for (const InodePtr& inode : inodes_.All()) {
    std::lock_guard lock(inode->mutex);
    inode->covered.reset();
  }
  return EndWhere([](const Scope&) { return true; });
}

HeldLeases::Ended HeldLeases::EndShared() {
  return EndWhere([](const Scope& scope) { return scope.shares(); });
}

HeldLeases::Ended HeldLeases::EndWhere(bool (*which)(const Scope&)) {
  Ended ended;
  for (const InodePtr& inode : inodes_.All()) {
    std::lock_guard lock(inode->mutex);
    if (inode->scope == nullptr || !which(*inode->scope)) continue;
    inode->NoteLeaving(*inode->scope);
    ended.emplace_back(inode, inode->EndScope());
  }
  return ended;
}

HeldLeases::Ended HeldLeases::TakeDropped() {
  Ended dropped;
  std::lock_guard lock(mutex_);  // who looks for one finds it there or here (LastOf)
  for (auto scopes = inodes_.TakeDroppedScopes(); !scopes.empty(); scopes = inodes_.TakeDroppedScopes()) {
    for (ScopePtr& scope : scopes) {
      InodePtr directory = inodes_.Get(scope->of);
      std::lock_guard inode_lock(directory->mutex);
      directory->NoteLeaving(*scope);
      if (directory->scope == nullptr) directory->ended = scope;
      dropped.emplace_back(std::move(directory), std::move(scope));
    }
  }
  return dropped;
}

ScopePtr HeldLeases::LastOf(Inode& directory, bool moves) {
  std::lock_guard order(mutex_);  // or it may be on its way from there to the directory
  ScopePtr dropped = inodes_.DroppedScope(directory.fid);
  std::lock_guard lock(directory.mutex);
  ScopePtr last = directory.scope;
  if (last == nullptr) last = dropped != nullptr ? dropped : directory.ended;
  if (!moves) return last;
  ++directory.moves;
  if (last != nullptr) last->BeginMove();
  return last;
}

}  // namespace nacre::client
