// WRITE leases of single files (docs/decisions/0075-write-leases-of-files.md).
//
// Where several mounts change a directory nobody has its lease for long, and each write to a file in it tells
// the MDS of size and times. Who does so a second time asks for WRITE of the file with that. Under it the
// file is worked on as under WRITE of the directory, by the same code. It goes back with the last handle by
// which the file could be written to, so that others who look at it afterwards recall nothing.
#include "client/core.h"

namespace nacre::client {

// Whether the MDS is to be asked for it, as it is about to be told of a write. Files that are written once
// and closed would have one message more.
bool Core::WantsFileLease(Inode& inode) {
  if (!options_.caching || !early_->MayAnswer()) return false;
  std::lock_guard lock(inode.mutex);
  if (inode.write_opens == 0 || inode.data_scope != nullptr || inode.scope != nullptr) return false;
  if (++inode.told_writes <= 1) return false;
  return inode.pages.recalled == 0ns ||
         environment_.clock.Coarse() - inode.pages.recalled > options_.file_peace;
}

// A handle for writing has gone. Nobody waits for the data that is held back.
void Core::ReturnFileLease(const InodePtr& inode) {
  Learning present = leases_->BeginLearning();
  ScopePtr ended = leases_->EndOfFile(*inode);
  if (ended == nullptr) return;
  background_.Start(ReturnLease(entrance_.epoch(), inode, ended->lease(), ended, std::move(present),
                                MetadataQueue::Hurry::kNo));
}

// --- data under these leases ---

void Core::ForgetOwnData(const Fid& fid) {
  InodePtr inode = inodes_->Find(fid);
  if (inode == nullptr) return own_data_.Forget(fid);
  std::lock_guard lock(inode->mutex);
  if (inode->data_scope == nullptr) own_data_.Forget(fid);
}

}  // namespace nacre::client
