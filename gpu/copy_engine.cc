#include "gpu/copy_engine.h"

#include <linux/mempolicy.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

namespace nacre::gpu {
namespace {

using std::chrono::microseconds;

constexpr EngineClock::duration kSpin = microseconds(15);  // what is over sooner is not worth a sleep
constexpr EngineClock::duration kShortest = microseconds(10);
constexpr EngineClock::duration kLongest = microseconds(500);

// How long to sleep until `due`, which may have passed. Zero: do not.
EngineClock::duration NapUntil(EngineTime due) {
  EngineClock::duration left = due - EngineClock::now();
  if (left > 2 * kSpin) return std::min(left / 2, kLongest);
  if (left > -kSpin) return {};
  return std::clamp(-left / 2, kShortest, kLongest);
}

// Memory that this thread makes somebody allocate lies there if there is room. A hint, so errors do not
// matter.
void PreferNumaNode(int node) {
  if (node < 0 || node >= 64) return;
  unsigned long mask = 1ul << node;
  syscall(SYS_set_mempolicy, MPOL_PREFERRED, &mask, 8 * sizeof mask);
}

}  // namespace

StatusOr<std::unique_ptr<CopyEngine>> CopyEngine::Start(std::shared_ptr<Context> context,
                                                        std::shared_ptr<const Kernels> kernels,
                                                        std::shared_ptr<const PinnedRanges> pinned,
                                                        std::shared_ptr<StreamWaits> waits, int numa_node) {
  std::unique_ptr<CopyEngine> engine(new CopyEngine(context, numa_node));
  UseContext use(*context);
  RETURN_IF_ERROR(use.status());
  ASSIGN_OR_RETURN(engine->issuer_,
                   Issuer::Open(context, std::move(kernels), std::move(pinned), std::move(waits)));
  engine->thread_ = std::thread([engine = engine.get()] { engine->Loop(); });
  return engine;
}

CopyEngine::~CopyEngine() {
  if (!thread_.joinable()) return;
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void CopyEngine::Submit(JobPtr job) {
  bool wake;
  {
    std::lock_guard lock(mutex_);
    queue_.push_back(std::move(job));
    wake = std::exchange(asleep_, false);
  }
  if (wake) wake_.notify_one();
}

Task<Status> CopyEngine::Run(JobPtr job) {
  Submit(job);
  co_return co_await job->done.Wait();
}

Task<Status> CopyEngine::Call(absl::AnyInvocable<Status()> function) {
  auto job = std::make_shared<Job>(Job::Kind::kCall);
  job->call = std::move(function);
  co_return co_await Run(std::move(job));
}

Task<Status> CopyEngine::Reserve() {
  absl::AnyInvocable<Status()> reserve = [this] {
    issuer_->Reserve();
    return OkStatus();
  };
  return Call(std::move(reserve));
}

void CopyEngine::Loop() {
  prctl(PR_SET_NAME, "nacre-gpu");
  prctl(PR_SET_TIMERSLACK, 1000);
  PreferNumaNode(numa_node_);
  UseContext use(*context_);
  for (;;) {
    std::vector<JobPtr> jobs = Take();
    bool issued = !jobs.empty();
    if (!issued && issuer_->Idle()) break;
    issuer_->Issue(std::move(jobs));
    if (!issuer_->Reap() && !issued && !issuer_->HasCalls()) Pause();
  }
  issuer_.reset();
}

std::vector<JobPtr> CopyEngine::Take() {
  std::unique_lock lock(mutex_);
  if (issuer_->Idle() && queue_.empty()) {
    asleep_ = true;
    wake_.wait(lock, [&] { return !queue_.empty() || stopping_; });
    asleep_ = false;
  }
  return std::exchange(queue_, {});
}

void CopyEngine::Pause() {
  if (issuer_->Idle()) return;
  EngineClock::duration nap = NapUntil(issuer_->Due());
  if (nap == EngineClock::duration::zero()) return;
  std::unique_lock lock(mutex_);
  if (!queue_.empty()) return;
  asleep_ = !issuer_->Busy();
  wake_.wait_for(lock, nap, [&] { return !queue_.empty() && !issuer_->Busy(); });
  asleep_ = false;
}

}  // namespace nacre::gpu
