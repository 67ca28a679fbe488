// The migrations that administrators have asked for (proto/cluster.proto, MigrateFile): each runs in the
// background, and whoever asks joins it. One that nobody asks about any more is given up. In memory: after a
// restart of the MDS the next question begins it anew. Thread-safe.
#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "common/clock.h"
#include "common/ids.h"
#include "common/status.h"
#include "common/task.h"
#include "proto/cluster.pb.h"

namespace nacre::mds {

struct Mds;
struct CopyProgress;

class MigrationJobs {
 public:
  // Waits for its end for a short while. ENOENT: there is no such file; EAGAIN: as many run as may; else as
  // Migrate (migration.h).
  Task<StatusOr<proto::MigrateState>> Ask(std::shared_ptr<Mds> mds, proto::MigrateFile request);

 private:
  struct Job;
  using JobPtr = std::shared_ptr<Job>;

  StatusOr<JobPtr> FindOrBegin(const std::shared_ptr<Mds>& mds, const Fid& fid,
                               const proto::MigrateFile& request);
  void End(const Fid& fid, const JobPtr& job);
  static Task<void> Run(std::shared_ptr<Mds> mds, Fid fid, JobPtr job);
  static Task<void> Watch(std::shared_ptr<Mds> mds, Fid fid, JobPtr job);

  std::mutex mutex_;
  std::map<Fid, JobPtr> jobs_;
};

}  // namespace nacre::mds
