#include "api/small_reads.h"

#include <absl/container/flat_hash_map.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <utility>

#include "api/extents.h"
#include "api/patience.h"
#include "api/reader.h"

namespace nacre::api {
namespace {

// Of one read that goes with others.
constexpr size_t kMostExtents = 16;
constexpr uint64_t kMostBytes = 64 << 10;
// Of a batch: more would only make its first reads wait for its last.
constexpr size_t kFewestReads = 16, kMostReads = 64;
constexpr uint64_t kMostOfBatch = 1 << 20;
constexpr size_t kFreeBatches = 2;
constexpr Duration kLongestWait = std::chrono::milliseconds(1);

const MemoryDevice* DeviceOf(const CheckedExtent& extent) { return extent.buffer->region()->device().get(); }

}  // namespace

std::shared_ptr<SmallReads> SmallReads::Make(std::shared_ptr<Connection> connection) {
  std::shared_ptr<SmallReads> reads(new SmallReads(std::move(connection)));
  reads->watchdog_ = std::make_shared<Watchdog>(reads->connection_->executor(), RealClock(),
                                                [weak = std::weak_ptr(reads)](Duration now) {
                                                  const std::shared_ptr<SmallReads> reads = weak.lock();
                                                  return reads == nullptr ? kNoDeadline : reads->Expire(now);
                                                });
  return reads;
}

SmallReads::~SmallReads() = default;

bool SmallReads::Suit(const std::vector<CheckedExtent>& extents) {
  if (extents.size() > kMostExtents) return false;
  uint64_t bytes = 0;
  for (const CheckedExtent& extent : extents) {
    if (extent.raw.rows > 1 || DeviceOf(extent) != DeviceOf(extents.front())) return false;
    bytes += extent.raw.length;
  }
  return bytes <= kMostBytes;
}

void SmallReads::Add(std::vector<CheckedExtent> extents, CancellationPtr cancellation, Done done) {
  const Duration now = RealClock().Now();
  {
    std::lock_guard lock(mutex_);
    if (!cancellation->status().ok()) return;  // Stop may have been here before
    waiting_.push_back({std::move(extents), std::move(cancellation), std::move(done), now});
    if (dispatching_) return;
    dispatching_ = batches_.size() < kFreeBatches;
    if (!dispatching_) {
      watchdog_->Arm(now + kLongestWait);
      return;
    }
  }
  connection_->Start(Dispatch(shared_from_this()));
}

// Begins what waits; the last batch as itself, which spares a task.
Task<void> SmallReads::Dispatch(std::shared_ptr<SmallReads> self) {
  std::vector<Read> cancelled;  // they have been told
  const std::vector<BatchPtr> batches = self->CutBatches(&cancelled);
  for (const BatchPtr& batch : batches) {
    if (batch != batches.back()) self->connection_->Start(Run(self, batch));
  }
  if (!batches.empty()) co_await Run(self, batches.back());
}

// Takes all that waits.
std::vector<SmallReads::BatchPtr> SmallReads::CutBatches(std::vector<Read>* cancelled) {
  std::lock_guard lock(mutex_);
  dispatching_ = false;
  std::vector<Read> reads = std::exchange(waiting_, {});
  const size_t most = std::clamp(reads.size() / kFreeBatches, kFewestReads, kMostReads);
  std::vector<BatchPtr> batches;
  absl::flat_hash_map<std::pair<const File*, const MemoryDevice*>, BatchPtr> open;  // with room for more
  for (Read& read : reads) {
    read.use = read.cancellation->Begin();
    if (!read.use) {
      cancelled->push_back(std::move(read));
      continue;
    }
    const CheckedExtent& first = read.extents.front();
    BatchPtr& batch = open[{first.file.get(), DeviceOf(first)}];
    uint64_t bytes = 0;
    for (const CheckedExtent& extent : read.extents) bytes += extent.raw.length;
    const bool fits = batch != nullptr && batch->reads.size() < most && batch->bytes + bytes <= kMostOfBatch;
    if (!fits) batches.push_back(batch = std::make_shared<Batch>());
    batch->bytes += bytes;
    batch->extents += read.extents.size();
    batch->reads.push_back(std::move(read));
  }
  for (const BatchPtr& batch : batches) Begin(batch);
  return batches;
}

// From here on it can be given up. It outlives its cancellation: whoever cancels holds it, and so does its
// task.
void SmallReads::Begin(const BatchPtr& batch) {
  batch->cancellation =
      std::make_shared<Cancellation>(kNoDeadline, [this, weak = std::weak_ptr(batch)](const Status& why) {
        if (const BatchPtr batch = weak.lock()) Settle(batch, {}, why);
      });
  batches_.insert(batch);
  if (batch->reads.size() == 1) return;
  batch->patience_ends = RealClock().Now() + kBatchPatience;
  watchdog_->Arm(batch->patience_ends);
}

Task<void> SmallReads::Run(std::shared_ptr<SmallReads> self, BatchPtr batch) {
  std::vector<CheckedExtent> extents;
  extents.reserve(batch->extents);
  {
    std::lock_guard lock(self->mutex_);
    if (batch->settled) co_return;  // given up before it began
    for (const Read& read : batch->reads) std::ranges::copy(read.extents, std::back_inserter(extents));
  }
  const Outcome outcome = co_await ReadTogether(extents, batch->cancellation);
  self->Settle(batch, outcome, outcome.front().status);
}

Task<void> SmallReads::RunAlone(Read read) {
  const Outcome outcome = co_await ReadEach(read.extents, read.cancellation);
  read.done(outcome);
}

// The first outcome counts: the task's, or that it was given up. The error of a batch says nothing of one
// read in it.
void SmallReads::Settle(const BatchPtr& batch, std::span<const ExtentOutcome> outcomes,
                        const Status& status) {
  std::vector<Read> reads;
  bool dispatch = false;
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(batch->settled, true)) return;
    batches_.erase(batch);
    reads = std::move(batch->reads);
    dispatch = !waiting_.empty() && !dispatching_;
    dispatching_ = dispatching_ || dispatch;
  }
  if (dispatch) connection_->Start(Dispatch(shared_from_this()));
  for (Read& read : reads) {
    read.use = {};  // tells who has cancelled it
    if (!status.ok()) {
      if (read.cancellation->status().ok()) connection_->Start(RunAlone(std::move(read)));
      continue;
    }
    read.done(outcomes.first(read.extents.size()));
    outcomes = outcomes.subspan(read.extents.size());
  }
}

// Gives up what has lasted too long, and begins what has waited too long. When the next one will have.
Duration SmallReads::Expire(Duration now) {
  std::vector<BatchPtr> late;
  Duration next = kNoDeadline;
  bool dispatch = false;
  {
    std::lock_guard lock(mutex_);
    next = FindLate(batches_, now, &late);
    if (!waiting_.empty() && !dispatching_) {
      dispatch = dispatching_ = waiting_.front().since + kLongestWait <= now;
      if (!dispatch) next = std::min(next, waiting_.front().since + kLongestWait);
    }
  }
  for (const BatchPtr& batch : late)
    batch->cancellation->Cancel(ErrnoError(ETIMEDOUT, "reads that went together were not read in time"));
  if (dispatch) connection_->Start(Dispatch(shared_from_this()));
  return next;
}

void SmallReads::Stop(const CancellationPtr& cancellation) {
  std::vector<Read> stopped;
  BatchPtr with_it;
  {
    std::lock_guard lock(mutex_);
    const auto is_it = [&](const Read& read) { return read.cancellation == cancellation; };
    const auto waits = std::ranges::find_if(waiting_, is_it);
    if (waits != waiting_.end()) {
      stopped.push_back(std::move(*waits));
      waiting_.erase(waits);
    }
    for (const BatchPtr& batch : batches_) {
      if (std::ranges::any_of(batch->reads, is_it)) with_it = batch;
    }
  }
  if (with_it != nullptr) with_it->cancellation->Cancel(ErrnoError(ECANCELED, "a read of it was cancelled"));
}

}  // namespace nacre::api
