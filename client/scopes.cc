// Leases of directories, and WRITE of files: what may be changed under them before the MDS has done it, and
// giving them back.
#include <utility>

#include "client/core.h"

namespace nacre::client {

// With behind_mutex_ and the mutex of the inode held: whether a change of it, and of its names, may be
// answered before the MDS has done it: what is known of it is true, and nothing else changes it. `settling`:
// how many of the changes that the MDS decides are the caller's.
bool Core::MayChangeEarly(const Inode& inode, uint32_t settling) const {
  if (!inode.attr_known || inode.settling > settling) return false;
  return inode.own_changes == 0 && inode.IsCovered() && inode.covered->writes() &&
         !changing_unknown_.contains(FromProto(inode.attr.parent()));
}

// --- taking over and giving back ---

// Takes over those that came with an answer. What was opened under those that end with it has to be told.
void Core::TakeScopes(Learning* learning, const proto::MetadataReply& reply) {
  std::vector<ScopePtr> ended = leases_->Take(learning, reply);
  if (learning->granted.empty()) return;
  for (ScopePtr& scope : ended) ReturnScope(nullptr, std::move(scope));
  ReturnDroppedScopes();
}

// All of them: what was learned under them need not be true any more, or nobody asks for it.
void Core::EndScopes() {
  for (auto& [directory, scope] : leases_->EndAll()) ReturnScope(std::move(directory), std::move(scope));
  ReturnDroppedScopes();
}

void Core::ReturnDroppedScopes() {
  for (auto& [directory, scope] : leases_->TakeDropped()) ReturnScope(std::move(directory), std::move(scope));
}

void Core::ReturnScope(InodePtr directory, ScopePtr scope) {
  const uint64_t lease = scope->lease();
  Learning present = leases_->BeginLearning();
  if (lease != 0) leases_->NoteGivenUp(lease);
  background_.Start(ReturnLease(entrance_.epoch(), std::move(directory), lease, std::move(scope),
                                std::move(present), MetadataQueue::Hurry::kNo));
}

}  // namespace nacre::client
