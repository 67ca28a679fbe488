// Handles a server's loss of power: bytes or changes of files that it had not synced may be gone. Programs
// hear of it at the next write, close or fsync (NoteError), and nothing is answered any more from what was
// known before.
//
// Thread-safe. The arguments of the constructor must outlive it, and it the tasks in `background`.
#pragma once

#include "client/background.h"
#include "client/durability.h"
#include "client/entrance.h"
#include "client/file_data.h"
#include "client/inode_table.h"
#include "client/kept_pages.h"
#include "client/kernel_cache.h"
#include "client/mds_calls.h"
#include "client/moving_out.h"
#include "client/write_behind.h"

namespace nacre::client {

class PowerLosses {
 public:
  PowerLosses(const Environment& environment, InodeTable& inodes, Entrance& entrance, Durability& durability,
              KeptPages& pages, MdsCalls& mds, FileData& data, MovingOut& moving_out,
              WriteBehind& write_behind, KernelCache& kernel, Background& background);

  // The OST says that it has lost power so many times.
  void OnOst(OstIndex ost, uint64_t losses);
  // The OST has lost power before what was written there of the file was synced. Returns the error that is
  // noted in the inode.
  Status NoteLost(const InodePtr& inode, OstIndex ost);
  // The MDT has lost power: of what was changed since the last sync, up to the mutation `synced`, some may be
  // gone.
  void OnMdt(uint64_t synced);

 private:
  Task<void> DropLost(InodePtr inode, bool of_mdt);
  Task<void> ForgetChanges(uint64_t synced);

  const Environment& environment_;
  InodeTable& inodes_;
  Entrance& entrance_;
  Durability& durability_;
  KeptPages& pages_;
  MdsCalls& mds_;
  FileData& data_;
  MovingOut& moving_out_;
  WriteBehind& write_behind_;
  KernelCache& kernel_;
  Background& background_;
};

}  // namespace nacre::client
