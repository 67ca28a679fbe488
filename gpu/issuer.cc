#include "gpu/issuer.h"

#include <algorithm>
#include <atomic>

#include "gpu/piece_sums.h"
#include "gpu/pointer_info.h"

namespace nacre::gpu {
namespace {

constexpr size_t kStreamsIn = 2;                // so that one copies while the other's next copy is prepared
constexpr uint64_t kEnoughInFlight = 16 << 20;  // keeps the copy engine busy until somebody looks again
constexpr size_t kFewestZerosForKernel = 4;     // fewer are quicker by themselves
constexpr size_t kMostZeroForKernel = 256 << 10;  // longer pieces fill the memory's rate by themselves
constexpr EngineClock::duration kLongestWatch = std::chrono::microseconds(100);

}  // namespace

Issuer::Issuer(std::shared_ptr<Context> context, std::shared_ptr<const Kernels> kernels,
               std::shared_ptr<const PinnedRanges> pinned, std::shared_ptr<StreamWaits> waits)
    : context_(context),
      kernels_(std::move(kernels)),
      pinned_(std::move(pinned)),
      waits_(std::move(waits)),
      lists_(context),
      zero_bytes_(std::move(context)) {}

StatusOr<std::unique_ptr<Issuer>> Issuer::Open(std::shared_ptr<Context> context,
                                               std::shared_ptr<const Kernels> kernels,
                                               std::shared_ptr<const PinnedRanges> pinned,
                                               std::shared_ptr<StreamWaits> waits) {
  std::unique_ptr<Issuer> issuer(
      new Issuer(std::move(context), std::move(kernels), std::move(pinned), std::move(waits)));
  RETURN_IF_ERROR(issuer->OpenStreams());
  return issuer;
}

Status Issuer::OpenStreams() {
  for (size_t i = 0; i < kStreamsIn; ++i) {
    ASSIGN_OR_RETURN(auto in, InFlight::Open(context_, &rate_in_));
    in_.push_back(std::move(in));
  }
  ASSIGN_OR_RETURN(out_, InFlight::Open(context_, &rate_out_));
  ASSIGN_OR_RETURN(work_, InFlight::Open(context_, &rate_of_work_));
  for (const auto& in : in_) all_.push_back(in.get());
  all_.insert(all_.end(), {out_.get(), work_.get()});
  return OkStatus();
}

Issuer::~Issuer() = default;

void Issuer::Issue(std::vector<JobPtr> jobs) {
  auto kind_begin = jobs.begin();
  std::stable_sort(jobs.begin(), jobs.end(), [](const auto& a, const auto& b) { return a->kind < b->kind; });
  while (kind_begin != jobs.end()) {
    Job::Kind kind = (*kind_begin)->kind;
    auto kind_end =
        std::find_if(kind_begin, jobs.end(), [kind](const auto& job) { return job->kind != kind; });
    std::span<const JobPtr> same(kind_begin, kind_end);
    if (kind == Job::Kind::kCopyIn || kind == Job::Kind::kCopyOut) IssueCopies(same, kind);
    if (kind == Job::Kind::kZero) IssueZeros(same);
    for (const JobPtr& job : same) {
      if (kind == Job::Kind::kSum) QueueSum(job);
      if (kind == Job::Kind::kCall) calls_.push_back(job);
      if (kind == Job::Kind::kWatch) watches_.push_back(job);
    }
    if (kind == Job::Kind::kWatch) watched_since_ = EngineClock::now();
    if (kind == Job::Kind::kSum) IssueSums();
    kind_begin = kind_end;
  }
  CallNext();
}

void Issuer::CallNext() {
  if (calls_.empty()) return;
  const JobPtr job = std::move(calls_.front());
  calls_.pop_front();
  job->done.Set(job->call());
}

Status Issuer::CheckPieces(std::span<const iovec> pieces) {
  SpanChecker checker(*context_);
  for (const iovec& piece : pieces)
    RETURN_IF_ERROR(checker.Check(reinterpret_cast<uint64_t>(piece.iov_base), piece.iov_len));
  return OkStatus();
}

void Issuer::IssueZeros(std::span<const JobPtr> jobs) {
  const auto nobody_waits = waits_->HoldOff();
  if (!nobody_waits.owns_lock()) return ZeroByCopies(jobs);
  Batch batch;
  const CudaLibrary& cuda = context_->cuda();
  for (const JobPtr& job : jobs) {
    std::vector<iovec> pieces = MergePieces(job->pieces);
    if (Status status = CheckPieces(pieces); !status.ok()) {
      job->done.Set(status);
      continue;
    }
    batch.jobs.push_back(job);
    batch.bytes += TotalBytes(pieces);
    if (kernels_ != nullptr && pieces.size() >= kFewestZerosForKernel) ZeroByKernel(&pieces, &batch);
    for (const iovec& piece : pieces) {
      auto address = reinterpret_cast<CudaAddress>(piece.iov_base);
      job->Fail(
          cuda.Check(cuda->MemsetD8Async(address, 0, piece.iov_len, work_->stream()), "cuMemsetD8Async"));
    }
  }
  if (batch.list != nullptr && batch.list->count > 0) {
    Status launched = kernels_->Zero(batch.list->view(), work_->stream());
    for (const JobPtr& job : batch.jobs) job->Fail(launched);
  }
  if (!batch.jobs.empty()) Send(std::move(batch), work_.get());
}

void Issuer::ZeroByCopies(std::span<const JobPtr> jobs) {
  StatusOr<std::span<std::byte>> zeros = zero_bytes_.Get();
  if (!zeros.ok()) {
    for (const JobPtr& job : jobs) job->done.Set(zeros.status());
    return;
  }
  for (const JobPtr& job : jobs) {
    for (const iovec& piece : MergePieces(job->pieces)) {
      const auto address = reinterpret_cast<uint64_t>(piece.iov_base);
      for (size_t done = 0; done < piece.iov_len; done += zeros->size())
        job->segments.push_back(
            {address + done, zeros->data(), std::min(zeros->size(), piece.iov_len - done)});
    }
  }
  IssueCopies(jobs, Job::Kind::kCopyIn);
}

// Moves what is better done by the kernel from `pieces` to the batch's list.
void Issuer::ZeroByKernel(std::vector<iovec>* pieces, Batch* batch) {
  auto small = std::stable_partition(pieces->begin(), pieces->end(),
                                     [](const iovec& piece) { return piece.iov_len > kMostZeroForKernel; });
  std::span<const iovec> taken(small, pieces->end());
  if (batch->list == nullptr) batch->list = lists_.Take();
  if (batch->list == nullptr || CountParts(taken) > batch->list->room()) return;
  std::vector<KernelPiece> parts;
  AppendParts(taken, &parts);
  std::copy(parts.begin(), parts.end(), batch->list->pieces + batch->list->count);
  batch->list->count += parts.size();
  pieces->erase(small, pieces->end());
}

void Issuer::QueueSum(JobPtr job) {
  Status status =
      kernels_ != nullptr ? CheckPieces(job->pieces) : ErrnoError(EOPNOTSUPP, "there are no kernels");
  WaitingSum sum;
  if (status.ok()) sum.runs = RunsOf(job->pieces);
  if (sum.runs.empty()) {
    job->done.Set(status);
    return;
  }
  job->sums.resize(CountParts(job->pieces));
  ++job->batches;  // until the last part is launched, whatever ends before
  sum.job = std::move(job);
  waiting_sums_.push_back(std::move(sum));
}

void Issuer::IssueSums() {
  if (waiting_sums_.empty()) return;
  const auto nobody_waits = waits_->HoldOff();
  if (!nobody_waits.owns_lock())
    return FailWaitingSums(ErrnoError(EBUSY, "a stream waits, behind which the kernel might stand"));
  while (!waiting_sums_.empty()) {
    LaunchList* list = lists_.Take();
    if (list != nullptr) {
      SendSums(list);
      continue;
    }
    if (lists_.AnyInUse()) return;
    FailWaitingSums(ErrnoError(ENOMEM, "no pinned memory for a list of checksums"));
  }
}

// Fails the jobs that wait. A job of which parts were launched ends when those have ended.
void Issuer::FailWaitingSums(const Status& status) {
  for (const WaitingSum& sum : waiting_sums_) {
    sum.job->Fail(status);
    if (--sum.job->batches == 0) sum.job->done.Set(sum.job->status);
  }
  waiting_sums_.clear();
}

// One launch of as much as the list holds.
void Issuer::SendSums(LaunchList* list) {
  Batch batch;
  batch.list = list;
  while (!waiting_sums_.empty() && list->room() > 0) {
    WaitingSum& sum = waiting_sums_.front();
    const auto runs = std::span(sum.runs).subspan(sum.next);
    const auto taken = runs.first(std::min(list->room(), runs.size()));
    std::copy(taken.begin(), taken.end(), list->pieces + list->count);
    list->count += taken.size();
    batch.jobs.push_back(sum.job);
    batch.sums.push_back({sum.job, sum.parts_done, taken.size()});
    for (const KernelPiece& run : taken) sum.parts_done += PartsOfRun(run);
    sum.next += taken.size();
    if (sum.next < sum.runs.size()) break;
    --sum.job->batches;
    waiting_sums_.pop_front();
  }
  Status launched = kernels_->Crc32c(list->view(), list->sums, work_->stream());
  for (const JobPtr& job : batch.jobs) job->Fail(launched);
  Send(std::move(batch), work_.get());
}

void Issuer::Send(Batch batch, InFlight* in_flight) {
  for (const JobPtr& job : batch.jobs) ++job->batches;
  if (std::optional<Batch> failed = in_flight->Push(std::move(batch))) Finish(*std::move(failed));
}

void Issuer::TakeSums(const Batch& batch) {
  size_t run = 0;
  for (const SumRange& range : batch.sums) {
    auto to = range.job->sums.begin() + static_cast<ptrdiff_t>(range.begin);
    for (size_t end = run + range.runs; run < end; ++run) {
      const KernelPiece& piece = batch.list->pieces[batch.first_run + run];
      to = std::copy_n(batch.list->sums + run * kPartsOfRun, PartsOfRun(piece), to);
    }
  }
}

void Issuer::Finish(Batch batch) {
  TakeSums(batch);
  if (batch.list != nullptr) lists_.Return(batch.list);
  for (const JobPtr& job : batch.jobs) {
    if (--job->batches == 0) job->done.Set(job->status);
  }
}

bool Issuer::Reap() {
  bool any = ReapWatches();
  for (InFlight* in_flight : all_) {
    while (std::optional<Batch> batch = in_flight->Pop()) {
      Finish(*std::move(batch));
      any = true;
    }
  }
  IssueSums();
  return any;
}

bool Issuer::ReapWatches() {
  if (watches_.empty()) return false;
  // Work that a broken device still had to do never ends. An idle stream tells at once.
  Status device;
  if (++looks_ % 64 == 0 && work_->empty())
    device = context_->cuda().Check(context_->cuda()->StreamSynchronize(work_->stream()), "the GPU");
  return std::erase_if(watches_, [&](const JobPtr& job) {
           if (device.ok() && !job->arrived()) return false;
           job->done.Set(device);
           return true;
         }) > 0;
}

bool Issuer::Idle() const {
  return waiting_sums_.empty() && watches_.empty() && calls_.empty() &&
         std::all_of(all_.begin(), all_.end(), [](InFlight* in_flight) { return in_flight->empty(); });
}

bool Issuer::Busy() const { return rate_in_.under_way() >= kEnoughInFlight; }

EngineTime Issuer::Due() const {
  EngineTime now = EngineClock::now();
  // A stream that has been waited for long may take longer: look more and more seldom.
  EngineTime due =
      watches_.empty() ? EngineTime::max() : now + std::min((now - watched_since_) / 8, kLongestWatch);
  for (InFlight* in_flight : all_) {
    if (!in_flight->empty()) due = std::min(due, in_flight->expected());
  }
  return due;
}

}  // namespace nacre::gpu
