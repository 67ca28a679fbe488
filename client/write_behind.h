// Write-behind: when what is held back of files is sent, and in which order.
//
// Data goes to the objects first and the size to the MDS after it, so that a file never shows bytes that are
// not there. Errors are noted in the inodes: the next write, fsync or close has them.
//
// Thread-safe. The arguments of the constructor must outlive it, and it the tasks in `background`. A wait for
// a server ends with its answer or with the session.
#pragma once

#include <atomic>
#include <vector>

#include "client/background.h"
#include "client/dirty_files.h"
#include "client/file_data.h"
#include "client/inode_table.h"
#include "client/mdt_room.h"
#include "client/moving_out.h"
#include "client/telling.h"

namespace nacre::client {

class WriteBehind {
 public:
  WriteBehind(const Environment& environment, InodeTable& inodes, FileData& data, Telling& telling,
              MovingOut& moving_out, MdtRoom& room, DirtyFiles& dirty, MetadataQueue& queue,
              Background& background);

  // Sets `bytes` of the room on the MDT aside, in all for this file; makes room by sending what others hold
  // back. False: there is none, ask the MDS now.
  Task<bool> Hold(InodePtr inode, uint64_t bytes);
  // More is dirty than is good: sends all of it, in the background.
  void RelievePressure();

  // Sends everything that has been dirty for so long.
  Task<void> SendOld(Duration age);
  // Sends all that is held back of the file.
  Task<Status> SendAll(InodePtr inode);
  // Sends all that this mount holds back, and waits for what others are sending just now.
  Task<Status> SendEverything();

  // A descriptor of the file was closed, or (`last`) the handle: what is held back goes at once. A small
  // file's bytes go behind its name, in the same request if that still waits. Waits for servers only if the
  // MDS knows of the truncation already that these bytes follow.
  Task<Status> SendClosed(InodePtr inode, bool last);
  // Returns when what is held back of the file reaches the MDS before anything that is told from now on.
  Task<Status> SendUnsent(InodePtr inode);

 private:
  void SendSoon(const InodePtr& inode);
  Task<void> Relieve();
  Task<void> SendGathered();
  Task<Status> SendFiles(std::vector<InodePtr> files);
  Task<Status> SendParts(InodePtr inode);

  const Environment& environment_;
  InodeTable& inodes_;
  FileData& data_;
  Telling& telling_;
  MovingOut& moving_out_;
  MdtRoom& room_;
  DirtyFiles& dirty_;
  MetadataQueue& queue_;
  Background& background_;
  std::atomic<bool> relieving_{false};
};

}  // namespace nacre::client
