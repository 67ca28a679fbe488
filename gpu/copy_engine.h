// The thread that hands a GPU its work: it takes everything that is queued at once, issues it (issuer.h) and
// ends the jobs whose events have come. While work is under way it sleeps for most of the time that the work
// should take; with nothing to do it sleeps until there is. Thread-safe.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "common/task.h"
#include "gpu/context.h"
#include "gpu/issuer.h"
#include "gpu/job.h"
#include "gpu/stream_waits.h"

namespace nacre::gpu {

class CopyEngine {
 public:
  // `numa_node` is where the memory that its calls allocate should lie; -1: anywhere.
  static StatusOr<std::unique_ptr<CopyEngine>> Start(std::shared_ptr<Context> context,
                                                     std::shared_ptr<const Kernels> kernels,
                                                     std::shared_ptr<const PinnedRanges> pinned,
                                                     std::shared_ptr<StreamWaits> waits, int numa_node);
  // Waits for all jobs.
  ~CopyEngine();
  CopyEngine(const CopyEngine&) = delete;
  CopyEngine& operator=(const CopyEngine&) = delete;

  void Submit(JobPtr job);
  Task<Status> Run(JobPtr job);
  // Runs the function on the engine's thread, with the context current.
  Task<Status> Call(absl::AnyInvocable<Status()> function);
  // The jobs that come afterwards allocate no pinned memory.
  Task<Status> Reserve();

 private:
  CopyEngine(std::shared_ptr<Context> context, int numa_node)
      : context_(std::move(context)), numa_node_(numa_node) {}
  void Loop();
  // Takes the queued jobs; waits for one if nothing is under way. Empty and idle: the end.
  std::vector<JobPtr> Take();
  void Pause();

  const std::shared_ptr<Context> context_;
  const int numa_node_;
  std::unique_ptr<Issuer> issuer_;  // the thread's, once it runs

  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<JobPtr> queue_;
  bool asleep_ = false;  // the thread wants to be told of new jobs
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace nacre::gpu
