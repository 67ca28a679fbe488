// Moves files off the OSTs that are being drained, in the background: one file after the other, at a limited
// rate (MetadataOptions::drain_rate). Which OSTs these are stands in their records, so a restart goes on with
// it; what has been moved already is not found there any more. While none is drained nothing runs.
// Thread-safe.
#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "common/ids.h"
#include "common/status.h"
#include "common/task.h"
#include "proto/cluster.pb.h"

namespace nacre::mds {

struct Mds;

class Drainer {
 public:
  // An OST may have come to be drained: begins, unless it is at work.
  void Wake(const std::shared_ptr<Mds>& mds);
  // Drops the figures of earlier drains of this OST.
  void Forget(OstIndex ost);

  // How far it is with an OST that is being drained.
  proto::DrainState StateOf(OstIndex ost) const;

 private:
  Task<void> Run(std::shared_ptr<Mds> mds);
  bool MayEnd();
  Task<void> Pass(std::shared_ptr<Mds> mds, OstIndex ost);
  Task<Status> MoveFiles(std::shared_ptr<Mds> mds, OstIndex ost, std::vector<Fid> files, uint64_t* found,
                         uint64_t* stuck);
  Task<Status> MoveOne(std::shared_ptr<Mds> mds, OstIndex ost, Fid fid);
  void NoteProblem(OstIndex ost, std::string problem);

  mutable std::mutex mutex_;
  bool runs_ = false;
  bool woken_ = false;  // since it has looked
  std::map<OstIndex, proto::DrainState> states_;
};

}  // namespace nacre::mds
