// Backups of the MDT of a running MDS (nacre mdt backup), for whoever asks over the seam of
// rpc/backup_channel.h.
//
// A backup is the store as it was at one moment: every change that had been answered then is in it, synced or
// not, with its reply, and of each change all or nothing. It is what a start of the MDS would find if its
// process had ended at that moment. Changes that a client holds back (write-behind, for a second or so) are
// not in it: sync there first. Nor are the objects' bytes, which the OSTs have, and what one of several
// copies of the MDT keeps beside it.
//
// The MDS goes on serving meanwhile: no lock is held, the store is read a block at a time. Overwritten
// records keep their space until the backup is over. Thread-safe.
#pragma once

#include <atomic>
#include <memory>

#include "common/clock.h"
#include "rpc/backup_channel.h"
#include "server/kv/kv_store.h"

namespace nacre {

class MdtBackups : public BackupHandler {
 public:
  static constexpr int kAtOnce = 2;

  // Both outlive this, and this and the store outlive the backups.
  MdtBackups(KvStore& store, Clock& clock) : store_(store), clock_(clock) {}

  // Also DATA_LOSS: the store holds no MDT.
  StatusOr<std::unique_ptr<BackupSource>> BeginBackup() override;

 private:
  KvStore& store_;
  Clock& clock_;
  std::atomic<int> under_way_{0};
};

}  // namespace nacre
