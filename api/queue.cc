// nacre.h: queues.
#include "api/queue.h"

#include <absl/strings/str_format.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "api/call.h"
#include "api/devices.h"
#include "api/patience.h"
#include "api/reader.h"
#include "api/writer.h"

namespace nacre::api {
namespace {

// Waiting requests are cut into about four batches, so that some are on their way while others are taken up;
// but not into smaller ones than one request to a server takes, nor into larger ones than take much longer
// than one.
constexpr size_t kBatchesAtOnce = 4, kFewest = 16, kMost = 64;
constexpr uint64_t kBatchBytes = 256 << 10;

nacre_extent ExtentOf(const nacre_request& raw) {
  nacre_extent extent = NACRE_EXTENT_INIT;
  extent.file = raw.file;
  extent.offset = raw.offset;
  extent.buffer = raw.buffer;
  extent.buffer_offset = raw.buffer_offset;
  extent.length = raw.length;
  return extent;
}

Status Cancelled() { return ErrnoError(ECANCELED, "it was cancelled"); }

Completed Ended(uint64_t user_data, const Status& status, uint64_t bytes) {
  const int64_t result = status.ok() ? static_cast<int64_t>(bytes) : -ToErrno(status);
  return {{user_data, result}, status};
}

}  // namespace

StatusOr<std::shared_ptr<Queue>> Queue::Open(std::shared_ptr<Client> client, uint64_t depth) {
  if (depth == 0 || depth > kMaxDepth) {
    return ErrnoError(EINVAL,
                      absl::StrFormat("a queue of %d requests: it may have 1 to %d", depth, kMaxDepth));
  }
  std::shared_ptr<Queue> queue(new Queue(std::move(client), depth));
  queue->watchdog_ = std::make_shared<Watchdog>(queue->client_->connection().executor(), RealClock(),
                                                [weak = std::weak_ptr(queue)](Duration now) {
                                                  const std::shared_ptr<Queue> queue = weak.lock();
                                                  return queue == nullptr ? kNoDeadline : queue->Expire(now);
                                                });
  if (!queue->client_->Attach(queue)) return ErrnoError(EBADF, "the client is being closed");
  return queue;
}

// --- what is submitted ---

Status Queue::Submit(const nacre_request* requests, size_t count, const nacre_io_options* options,
                     size_t* taken) {
  *taken = 0;
  nacre_io_options io = NACRE_IO_OPTIONS_INIT;
  RETURN_IF_ERROR(ReadOptions(options, &io));
  if (io.timeout < 0) return ErrnoError(EINVAL, absl::StrFormat("a timeout of %d ns", io.timeout));
  ASSIGN_OR_RETURN(const std::vector<nacre_request> raw, ReadArray(requests, count, "requests"));
  ASSIGN_OR_RETURN(*taken, completions_.Admit(raw.size()));
  if (*taken == 0 && count > 0)
    return ErrnoError(EAGAIN, "the queue is full: take completions first, or open one with a greater depth");
  const Duration timeout = io.timeout == 0 ? Duration::max() : std::chrono::nanoseconds(io.timeout);
  const Duration deadline = DeadlineAfter(RealClock().Now(), timeout);
  BuffersOnce looked_at;
  std::vector<Request> good;
  std::vector<Completed> wrong;
  good.reserve(*taken);
  for (size_t i = 0; i < *taken; ++i) {
    Request request{.user_data = raw[i].user_data, .deadline = deadline};
    const CheckedExtent* before = good.empty() ? nullptr : &good.back().extent;
    const Status checked = Check(raw[i], before, &looked_at, &request);
    if (checked.ok())
      good.push_back(std::move(request));
    else
      wrong.push_back(Ended(request.user_data, checked, 0));
  }
  if (!good.empty()) Enqueue(std::move(good));
  if (!wrong.empty()) completions_.Add(std::move(wrong));
  return OkStatus();
}

// With the buffer in use, if it is right.
Status Queue::Check(const nacre_request& raw, const CheckedExtent* before, BuffersOnce* looked_at,
                    Request* request) const {
  if (raw.operation > NACRE_REQUEST_WRITE || raw.reserved != 0) {
    return ErrnoError(
        EINVAL, absl::StrFormat("a request of operation %d: begin with NACRE_REQUEST_INIT, and set it to "
                                "NACRE_REQUEST_READ or NACRE_REQUEST_WRITE",
                                raw.operation));
  }
  request->transfer = raw.operation == NACRE_REQUEST_READ ? Transfer::kRead : Transfer::kWrite;
  ASSIGN_OR_RETURN(request->extent, CheckExtent(ExtentOf(raw), before));
  if (request->extent.file->client() != client_)
    return ErrnoError(EINVAL, absl::StrFormat("%s was opened with another client than the queue",
                                              request->extent.file->path()));
  if (request->transfer == Transfer::kRead) RETURN_IF_ERROR(CheckTarget(request->extent));
  if (raw.buffer.id != 0) {  // that of loose memory was found by looking
    const auto [found, fresh] = looked_at->try_emplace(raw.buffer.id);
    if (fresh) found->second = CheckStillThere(*request->extent.buffer);
    RETURN_IF_ERROR(found->second);
  }
  if (request->extent.buffer->Begin()) return OkStatus();
  return ErrnoError(EBADF, "the buffer is being released");
}

void Queue::Enqueue(std::vector<Request> requests) {
  {
    std::lock_guard lock(mutex_);
    std::ranges::move(requests, std::back_inserter(waiting_));
    if (std::exchange(dispatching_, true)) return;
  }
  client_->connection().Start(Dispatch(shared_from_this()));
}

// --- batches ---

// Begins what waits; the last batch as itself, which spares a task.
Task<void> Queue::Dispatch(std::shared_ptr<Queue> self) {
  std::vector<Completed> cancelled;
  std::vector<BatchPtr> batches = self->CutBatches(&cancelled);
  if (!cancelled.empty()) self->completions_.Add(std::move(cancelled));
  for (const BatchPtr& batch : batches) {
    if (batch != batches.back()) self->client_->connection().Start(Run(batch));
  }
  if (!batches.empty()) co_await Run(batches.back());
}

// Takes all that waits.
std::vector<Queue::BatchPtr> Queue::CutBatches(std::vector<Completed>* cancelled) {
  std::lock_guard lock(mutex_);
  dispatching_ = false;
  std::vector<Request> requests = std::exchange(waiting_, {});
  const size_t most = std::clamp(requests.size() / kBatchesAtOnce, kFewest, kMost);
  std::vector<BatchPtr> batches;
  absl::flat_hash_map<std::pair<File*, Duration::rep>, BatchPtr> open;  // with room for more
  for (Request& request : requests) {
    const bool reads = request.transfer == Transfer::kRead;
    if (request.cancelled || (closing_ && reads)) {
      request.extent.buffer->End();
      cancelled->push_back(Ended(request.user_data, Cancelled(), 0));
      continue;
    }
    BatchPtr fresh;
    BatchPtr& batch =
        reads && !request.alone ? open[{request.extent.file.get(), request.deadline.count()}] : fresh;
    const uint64_t bytes = request.extent.bytes();
    const bool fits =
        batch != nullptr && batch->requests.size() < most && batch->bytes + bytes <= kBatchBytes;
    if (!fits) {
      batch = std::make_shared<Batch>(shared_from_this(), request.transfer);
      batches.push_back(batch);
      batches_.insert(batch);
    }
    batch->bytes += bytes;
    batch->requests.push_back(std::move(request));
  }
  for (const BatchPtr& batch : batches) Begin(batch);
  return batches;
}

// From here on it can be cancelled.
void Queue::Begin(const BatchPtr& batch) {
  const Request& first = batch->requests.front();
  // The batch outlives its cancellation: whoever cancels holds it, and so does whoever uses the memory.
  batch->cancellation =
      std::make_shared<Cancellation>(first.deadline, [batch = batch.get()](const Status& why) {
        batch->queue->Settle(*batch, Outcome(batch->requests.size(), Failed(why)));
      });
  const bool shared = batch->requests.size() > 1;
  batch->patience_ends = std::min(first.deadline, shared ? RealClock().Now() + kBatchPatience : kNoDeadline);
  if (batch->patience_ends != kNoDeadline) watchdog_->Arm(batch->patience_ends);
}

// Gives up what has lasted too long. The time of the next that will have.
Duration Queue::Expire(Duration now) {
  std::vector<BatchPtr> late;
  Duration next = kNoDeadline;
  {
    std::lock_guard lock(mutex_);
    next = FindLate(batches_, now, &late);
  }
  for (const BatchPtr& batch : late) {
    const char* what = batch->transfer == Transfer::kRead ? "read" : "written";
    batch->cancellation->Cancel(ErrnoError(ETIMEDOUT, absl::StrFormat("not %s in time", what)));
  }
  return next;
}

Task<void> Queue::Run(BatchPtr batch) {
  std::vector<CheckedExtent> extents;
  {
    std::lock_guard lock(batch->queue->mutex_);
    if (batch->done) co_return;  // cancelled before it began
    for (const Request& request : batch->requests) extents.push_back(request.extent);
  }
  Outcome outcome;
  if (batch->transfer == Transfer::kRead)
    outcome = co_await ReadTogether(extents, batch->cancellation);
  else
    outcome = co_await WriteTogether(std::move(extents), batch->cancellation);
  batch->queue->Settle(*batch, outcome);
}

// The first outcome counts: the task's, or that it was given up.
void Queue::Settle(Batch& batch, const Outcome& outcome) {
  std::vector<Completed> done;
  std::vector<Request> again;
  const BatchPtr kept = batch.shared_from_this();
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(batch.done, true)) return;
    batches_.erase(kept);
    for (size_t i = 0; i < batch.requests.size(); ++i) {
      Request& request = batch.requests[i];
      if (MayBeginAgain(batch, request, outcome[i].status)) {
        request.alone = true;
        again.push_back(std::move(request));
        continue;
      }
      request.extent.buffer->End();
      const bool cancelled = request.cancelled && !outcome[i].status.ok();
      done.push_back(Ended(request.user_data, cancelled ? Cancelled() : outcome[i].status, outcome[i].bytes));
    }
  }
  if (!again.empty()) Enqueue(std::move(again));
  if (!done.empty()) completions_.Add(std::move(done));
}

// The error of a batch says nothing of one read in it.
bool Queue::MayBeginAgain(const Batch& batch, const Request& request, const Status& status) {
  const bool shared = batch.requests.size() > 1;
  return shared && !status.ok() && !request.cancelled && request.deadline > RealClock().Now();
}

// --- the end ---

void Queue::CancelThose(const std::function<bool(const Request&)>& meant) {
  std::vector<BatchPtr> hit;
  {
    std::lock_guard lock(mutex_);
    auto mark = [&](Request& request) {
      if (!meant(request)) return false;
      return request.cancelled = true;
    };
    for (Request& request : waiting_) mark(request);
    for (const BatchPtr& batch : batches_) {
      if (std::ranges::count_if(batch->requests, mark) > 0) hit.push_back(batch);
    }
  }
  for (const BatchPtr& batch : hit) batch->cancellation->Cancel(Cancelled());
}

void Queue::Cancel(uint64_t user_data) {
  CancelThose([user_data](const Request& request) { return request.user_data == user_data; });
}

void Queue::CancelAll() {
  CancelThose([](const Request&) { return true; });
}

void Queue::Close() {
  completions_.Close();
  {
    std::lock_guard lock(mutex_);
    closing_ = true;
  }
  CancelThose([](const Request& request) { return request.transfer == Transfer::kRead; });
  completions_.AwaitIdle();
  watchdog_->Stop();
  client_->Detach(*this);
}

// --- the functions ---

namespace {

StatusOr<std::shared_ptr<Queue>> FindQueue(nacre_queue queue) {
  RETURN_IF_ERROR(CheckProcess());
  std::shared_ptr<Queue> found = AllTables().queues.Find(queue.id);
  if (found != nullptr) return found;
  return ErrnoError(EBADF,
                    absl::StrFormat("queue %d is not open: it was closed, or never was one", queue.id));
}

Status OpenQueue(nacre_client handle, uint64_t depth, nacre_queue* queue) {
  ASSIGN_OR_RETURN(std::shared_ptr<Client> client, FindClient(handle));
  if (queue == nullptr) return ErrnoError(EINVAL, "nacre_queue_open: a null argument");
  ASSIGN_OR_RETURN(std::shared_ptr<Queue> made, Queue::Open(std::move(client), depth));
  queue->id = AllTables().queues.Add(std::move(made));
  return OkStatus();
}

Status Submit(nacre_queue handle, const nacre_request* requests, size_t count,
              const nacre_io_options* options, size_t* taken) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Queue> queue, FindQueue(handle));
  if (taken == nullptr) return ErrnoError(EINVAL, "nacre_queue_submit: no place for how many were taken");
  return queue->Submit(requests, count, options, taken);
}

Status Reap(nacre_queue handle, size_t least, int64_t timeout, nacre_completion* completions, size_t most,
            size_t* reaped) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Queue> queue, FindQueue(handle));
  if (reaped == nullptr || (completions == nullptr && most > 0))
    return ErrnoError(EINVAL, "nacre_queue_reap: a null argument");
  *reaped = 0;
  Status error = OkStatus();
  RETURN_IF_ERROR(queue->completions().Reap(least, std::chrono::nanoseconds(timeout),
                                            std::span(completions, most), reaped, &error));
  (void)Answer(error);  // only for its words
  return OkStatus();
}

Status GiveDescriptor(nacre_queue handle, int* event_fd) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Queue> queue, FindQueue(handle));
  if (event_fd == nullptr) return ErrnoError(EINVAL, "nacre_queue_event_fd: a null argument");
  ASSIGN_OR_RETURN(*event_fd, queue->completions().Descriptor());
  return OkStatus();
}

Status CancelIn(nacre_queue handle, const uint64_t* user_data) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Queue> queue, FindQueue(handle));
  if (user_data == nullptr)
    queue->CancelAll();
  else
    queue->Cancel(*user_data);
  return OkStatus();
}

Status CloseQueue(nacre_queue handle) {
  RETURN_IF_ERROR(FindQueue(handle).status());
  const std::shared_ptr<Queue> queue = AllTables().queues.Take(handle.id);
  if (queue == nullptr) return ErrnoError(EBADF, "the queue is being closed by another thread");
  queue->Close();
  return OkStatus();
}

}  // namespace
}  // namespace nacre::api

using nacre::api::Answer;

extern "C" {

int nacre_queue_open(nacre_client client, uint64_t depth, nacre_queue* queue) {
  return Answer(nacre::api::OpenQueue(client, depth, queue));
}

int nacre_queue_submit(nacre_queue queue, const nacre_request* requests, size_t count,
                       const nacre_io_options* options, size_t* taken) {
  return Answer(nacre::api::Submit(queue, requests, count, options, taken));
}

int nacre_queue_reap(nacre_queue queue, size_t least, int64_t timeout, nacre_completion* completions,
                     size_t most, size_t* reaped) {
  return Answer(nacre::api::Reap(queue, least, timeout, completions, most, reaped));
}

int nacre_queue_event_fd(nacre_queue queue, int* event_fd) {
  return Answer(nacre::api::GiveDescriptor(queue, event_fd));
}

int nacre_queue_cancel(nacre_queue queue, const uint64_t* user_data) {
  return Answer(nacre::api::CancelIn(queue, user_data));
}

int nacre_queue_close(nacre_queue queue) { return Answer(nacre::api::CloseQueue(queue)); }

}  // extern "C"
