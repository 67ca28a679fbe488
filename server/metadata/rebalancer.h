// Spreads files over OSTs, in the background: `nacre ost rebalance` (docs/decisions/0072-rebalance.md). There
// is one run at a time, from its start by an administrator to the end that it finds by itself, or is given. A
// record says that there is one, so a restart goes on with it; what has been moved by then shows in the OSTs'
// usage and in the files' objects. While there is none, nothing runs.
//
// This class keeps the run: its record, its figures, its end. rebalance_run.h has the work. Thread-safe.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "common/status.h"
#include "common/task.h"
#include "proto/cluster.pb.h"
#include "server/metadata/records.h"

namespace nacre::mds {

struct Mds;
struct CopyProgress;

class Rebalancer {
 public:
  // Goes on with a run that there is. For the start.
  void Resume(const std::shared_ptr<Mds>& mds);

  // Does what an administrator asks for, durably, and returns the state that this leaves. EINVAL: there is no
  // such threshold; else the store's errors.
  Task<StatusOr<proto::RebalanceState>> Ask(std::shared_ptr<Mds> mds, proto::RebalanceOsts request);

  // Returns how far it is. None: there has been no run since the start.
  std::optional<proto::RebalanceState> State(const Mds& mds) const;

  // --- of the run ---

  bool Runs(const RebalanceRecord& run) const;
  void NoteMoved(uint64_t bytes);
  void NoteStuck(uint64_t files, std::string problem);  // an empty problem leaves the one that there is
  void ForgetStuck();
  // Notes the copy that is under way, to be given up if the run is stopped; null: there is none.
  void SetCopy(std::shared_ptr<CopyProgress> copy);
  // Lets all files be moved once more from now on. Returns the run as it goes on; as it was, if it does not
  // run any more.
  Task<StatusOr<RebalanceRecord>> Renew(std::shared_ptr<Mds> mds, RebalanceRecord run);
  // Ends the run, unless somebody has stopped it, or begun another one.
  Task<Status> End(std::shared_ptr<Mds> mds, RebalanceRecord run, bool even, std::string why);

 private:
  Task<Status> Start(std::shared_ptr<Mds> mds, uint32_t threshold);
  Task<Status> Stop(std::shared_ptr<Mds> mds);
  static Task<Status> Store(std::shared_ptr<Mds> mds, std::optional<RebalanceRecord> run);
  void Begin(const std::shared_ptr<Mds>& mds, const RebalanceRecord& run);
  void EndLocked(bool even, std::string why);
  std::optional<RebalanceRecord> NextRun();
  static Task<void> Run(std::shared_ptr<Mds> mds);

  AsyncMutex changing_;  // of the record
  mutable std::mutex mutex_;
  std::optional<RebalanceRecord> run_;
  bool works_ = false;  // a task does
  proto::RebalanceState state_;
  std::shared_ptr<CopyProgress> copy_;
};

}  // namespace nacre::mds
