#include "server/metadata/id_allocator.h"

#include <absl/strings/str_format.h>

#include <algorithm>

namespace nacre::mds {

StatusOr<uint64_t> FirstAfterRestore(CounterId counter, uint64_t stored, const WallTime& now) {
  // From the beginning of the next second: numbers of this one may have been taken by the restore before.
  const uint64_t seconds = static_cast<uint64_t>(std::max<int64_t>(now.seconds - kCountedFrom, 0)) + 1;
  const uint64_t next = counter == CounterId::kRun ? seconds / kSecondsPerRun + 1 : seconds * kPerSecond;
  if (stored < next) return next;
  return absl::FailedPreconditionError(absl::StrFormat(
      "counter %d of the MDT stands at %d in the backup, and this clock would put it at %d: the clock is "
      "behind that of the machine on which this MDT was restored before. Set it right",
      static_cast<int>(counter), stored, next));
}

Task<Status> IdAllocator::Start() {
  std::vector<Counter*> all = {&fid_sequences_, &objects_, &sessions_, &runs_};
  auto guard = co_await extending_.Lock();
  co_return co_await Extend(std::move(all));
}

Task<Status> IdAllocator::Extend(std::vector<Counter*> counters) {
  std::vector<uint64_t> starts;
  KvBatch batch;
  for (Counter* counter : counters) {
    auto stored = tables_.Get(CounterKey(counter->id));
    uint64_t start = 1;
    if (stored.ok()) {
      CO_ASSIGN_OR_RETURN(start, ParseNumber(*stored));
    } else if (!absl::IsNotFound(stored.status())) {
      co_return stored.status();
    }
    starts.push_back(start);
    batch.Put(CounterKey(counter->id), EncodeNumber(start + counter->step));
  }
  CO_RETURN_IF_ERROR(co_await tables_.CommitBatch(std::move(batch)));
  CO_RETURN_IF_ERROR(co_await tables_.Sync());
  std::lock_guard lock(mutex_);
  for (size_t i = 0; i < counters.size(); ++i) {
    counters[i]->next = starts[i];
    counters[i]->end = starts[i] + counters[i]->step;
  }
  co_return OkStatus();
}

bool IdAllocator::TryNext(Counter* counter, uint64_t* number) {
  std::lock_guard lock(mutex_);
  if (counter->next == counter->end) return false;
  *number = counter->next++;
  return true;
}

Task<StatusOr<uint64_t>> IdAllocator::Next(Counter* counter) {
  uint64_t number = 0;
  if (TryNext(counter, &number)) co_return number;
  auto guard = co_await extending_.Lock();
  while (!TryNext(counter, &number)) {
    std::vector<Counter*> one = {counter};
    CO_RETURN_IF_ERROR(co_await Extend(std::move(one)));
  }
  co_return number;
}

bool IdAllocator::TryFid(Fid* fid) {
  std::lock_guard lock(mutex_);
  if (last_fid_.object == ~uint32_t{0}) return false;
  ++last_fid_.object;
  *fid = last_fid_;
  return true;
}

Task<StatusOr<Fid>> IdAllocator::NextFid() {
  Fid fid;
  while (!TryFid(&fid)) {
    CO_ASSIGN_OR_RETURN(uint64_t sequence, co_await Next(&fid_sequences_));
    std::lock_guard lock(mutex_);
    if (last_fid_.object == ~uint32_t{0}) last_fid_ = {sequence, 0, 0};
  }
  co_return fid;
}

Task<StatusOr<uint64_t>> IdAllocator::NextObjectSequence() { co_return co_await Next(&objects_); }

Task<StatusOr<SessionId>> IdAllocator::NextSession() { co_return co_await Next(&sessions_); }

}  // namespace nacre::mds
