// Turns jobs into work of CUDA streams and ends them when the device is done. For one thread, the copy
// engine's, on which the context is current.
//
// Jobs that are issued together become few batches: the small copies of a batch are one call, or one kernel
// where the host memory is pinned; the checksums of all jobs are one launch. The checksums of copied bytes
// are launched behind the copy in the same stream, for all copies of the batch at once, and ends with them.
//
// While a stream of the application's waits for us, everything is done by the copy engines (stream_waits.h):
// copies in rows where one piece would be short, zeros by copies of zeros. Checksums they cannot make: these
// jobs end with EBUSY, and copies without sums. A single byte cannot be two rows; it may stand behind the
// stream. Readers avoid it (client/read_into.cc).
#pragma once

#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "gpu/batch.h"
#include "gpu/context.h"
#include "gpu/in_flight.h"
#include "gpu/job.h"
#include "gpu/kernels.h"
#include "gpu/launch_lists.h"
#include "gpu/pinned_ranges.h"
#include "gpu/pinned_zeros.h"
#include "gpu/shared_rate.h"
#include "gpu/stream_waits.h"

namespace nacre::gpu {

class Issuer {
 public:
  // `kernels` may be null.
  static StatusOr<std::unique_ptr<Issuer>> Open(std::shared_ptr<Context> context,
                                                std::shared_ptr<const Kernels> kernels,
                                                std::shared_ptr<const PinnedRanges> pinned,
                                                std::shared_ptr<StreamWaits> waits);
  ~Issuer();

  // Starts these jobs, and then calls one of the functions that wait: that may take as long as the device
  // needs for the rest (registering memory does).
  void Issue(std::vector<JobPtr> jobs);

  // Allocates now what Issue would allocate when it needs it first.
  void Reserve() {
    lists_.AllocateAll();
    (void)zero_bytes_.Get();  // fails again where it is needed
  }

  // Ends the jobs that are done. Whether there were any.
  bool Reap();

  // Whether functions wait to be called. Issue calls one at a time, lest copies wait for several.
  bool HasCalls() const { return !calls_.empty(); }

  bool Idle() const;
  // Of copies; more of them would only wait.
  bool Busy() const;
  // When it is worth while to look again; not if idle.
  EngineTime Due() const;

 private:
  struct Item {
    Segment segment;
    Job* job;
  };
  struct WaitingSum {
    JobPtr job;
    std::vector<KernelPiece> runs;
    size_t next = 0;        // of these
    size_t parts_done = 0;  // of the runs before
  };

  Issuer(std::shared_ptr<Context> context, std::shared_ptr<const Kernels> kernels,
         std::shared_ptr<const PinnedRanges> pinned, std::shared_ptr<StreamWaits> waits);
  Status OpenStreams();

  void IssueCopies(std::span<const JobPtr> jobs, Job::Kind kind);
  void AddItems(const Segment& segment, Job* job, std::vector<Item>* items) const;
  void SendCopies(Batch batch, std::vector<Item> items, Job::Kind kind);
  void CopyByKernel(std::vector<Item>* items, Batch* batch, CudaStream stream);
  bool CopyInOneCall(std::span<const Item> items, Job::Kind kind, CudaStream stream);
  void CopyOneByOne(std::span<const Item> items, Job::Kind kind, CudaStream stream);
  void CopyByEngine(std::span<const Item> items, Job::Kind kind, CudaStream stream);
  void CopyInTwoRows(Segment segment, Job* job, CudaStream stream);
  void SumBehind(Batch* batch, CudaStream stream);
  bool FitsKernel(const Item& item) const;

  void IssueZeros(std::span<const JobPtr> jobs);
  void ZeroByCopies(std::span<const JobPtr> jobs);
  void ZeroByKernel(std::vector<iovec>* pieces, Batch* batch);
  void QueueSum(JobPtr job);
  void IssueSums();
  void FailWaitingSums(const Status& status);
  void SendSums(LaunchList* list);
  Status CheckPieces(std::span<const iovec> pieces);

  void Send(Batch batch, InFlight* in_flight);
  static void TakeSums(const Batch& batch);
  void Finish(Batch batch);
  bool ReapWatches();
  void CallNext();

  const std::shared_ptr<Context> context_;
  const std::shared_ptr<const Kernels> kernels_;
  const std::shared_ptr<const PinnedRanges> pinned_;
  const std::shared_ptr<StreamWaits> waits_;
  LaunchLists lists_;
  PinnedZeros zero_bytes_;
  SharedRate rate_in_, rate_out_, rate_of_work_;
  std::vector<std::unique_ptr<InFlight>> in_;  // host to device, taken in turn
  size_t next_in_ = 0;
  std::unique_ptr<InFlight> out_;
  std::unique_ptr<InFlight> work_;  // zeros and checksums
  std::vector<InFlight*> all_;
  std::deque<WaitingSum> waiting_sums_;
  std::deque<JobPtr> calls_;
  std::vector<JobPtr> watches_;
  EngineTime watched_since_;
  uint64_t looks_ = 0;
};

}  // namespace nacre::gpu
