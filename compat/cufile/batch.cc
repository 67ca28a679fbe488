#include "compat/cufile/batch.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <map>
#include <optional>

#include "compat/cufile/transfer.h"

namespace nacre::cufile {
namespace {

using Clock = std::chrono::steady_clock;

// Small entries go together, as far as this: they cost few requests then, and do not wait for one another for
// long.
constexpr uint64_t kTogether = 1 << 20;

struct Batches {
  std::mutex mutex;
  std::map<CUfileBatchHandle_t, std::shared_ptr<Batch>> all;
};
Batches& All() {
  static Batches& batches = *new Batches;
  return batches;
}

// How long poll(2) is to wait.
int Milliseconds(const std::optional<Clock::time_point>& end) {
  if (!end) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(*end - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, INT_MAX));
}

}  // namespace

CUfileError_t Batch::Make(unsigned capacity, CUfileBatchHandle_t* handle) {
  if (handle == nullptr || capacity == 0 || capacity > kMost) return Answer(kInvalidValue);
  const int event = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (event < 0) return Answer(kInternalError);
  std::shared_ptr<Batch> batch(new Batch(capacity, event));
  *handle = batch.get();
  std::lock_guard lock(All().mutex);
  All().all[*handle] = std::move(batch);
  return Answer(kSuccess);
}

std::shared_ptr<Batch> Batch::Find(CUfileBatchHandle_t handle) {
  std::lock_guard lock(All().mutex);
  auto it = All().all.find(handle);
  return it == All().all.end() ? nullptr : it->second;
}

void Batch::Destroy(CUfileBatchHandle_t handle) {
  std::shared_ptr<Batch> gone;
  std::lock_guard lock(All().mutex);
  auto it = All().all.find(handle);
  if (it == All().all.end()) return;
  gone = std::move(it->second);
  All().all.erase(it);
}

Batch::~Batch() {
  Cancel();
  ::close(event_);
}

CUfileError_t Batch::Submit(const CUfileIOParams_t* entries, unsigned count) {
  const CUfileError_t refused = Answer(kInternalBatchSubmitError);
  if (entries == nullptr || count == 0) return refused;
  std::vector<FilePtr> files;
  for (unsigned i = 0; i < count; ++i) {
    files.push_back(State::Get().Find(entries[i].fh));
    if (entries[i].mode != kBatch || files.back() == nullptr) return refused;
  }
  std::lock_guard lock(mutex_);
  if (count > capacity_ - taken_) return refused;
  taken_ += count;
  std::vector<nacre_extent> extents[2];  // reads, writes
  Group groups[2];
  uint64_t bytes[2] = {};
  auto flush = [&](bool writes) {
    if (!extents[writes].empty()) Begin(writes, std::move(extents[writes]), std::move(groups[writes]));
    extents[writes].clear();
    groups[writes] = {};
    bytes[writes] = 0;
  };
  for (unsigned i = 0; i < count; ++i) {
    const CUfileIOParams_t& entry = entries[i];
    const auto& its = entry.u.batch;
    const bool writes = entry.opcode == kWrite;
    const Request request{writes, its.devPtr_base, its.devPtr_offset, its.size, its.file_offset};
    const int error = writes || entry.opcode == kRead ? Check(*files[i], request) : EINVAL;
    if (error != 0 || its.size == 0) {
      Finish(entry.cookie, error, 0);
    } else if (files[i]->handle().id == 0) {
      const ssize_t done = Transfer(entry.fh, request);
      Finish(entry.cookie, done < 0 ? errno : 0, done < 0 ? 0 : static_cast<uint64_t>(done));
    } else {
      if (bytes[writes] + its.size > kTogether) flush(writes);
      extents[writes].push_back(
          ExtentOf(files[i]->handle(), its.devPtr_base, its.devPtr_offset, its.size, its.file_offset));
      groups[writes].cookies.push_back(entry.cookie);
      groups[writes].files.push_back(files[i]);
      bytes[writes] += its.size;
    }
  }
  flush(false);
  flush(true);
  return Answer(kSuccess);
}

// mutex_ is held.
void Batch::Begin(bool writes, std::vector<nacre_extent> extents, Group group) {
  group.writes = writes;
  const auto begin = writes ? nacre_writev_async : nacre_readv_async;
  if (const int error = begin(extents.data(), extents.size(), nullptr, &group.future); error != 0) {
    for (void* cookie : group.cookies) Finish(cookie, error, 0);
    return;
  }
  if (nacre_future_notify(group.future, event_) == 0) return under_way_.push_back(std::move(group));
  // Nobody would tell of its end, and its memory is in use until then.
  (void)nacre_future_wait(group.future, -1);
  End(group);
}

// mutex_ is held.
void Batch::Finish(void* cookie, int error, uint64_t bytes) {
  CUfileIOEvents_t event{cookie, kComplete, bytes};
  if (error != 0) event = {cookie, error == ECANCELED ? kCanceled : kFailed, static_cast<size_t>(-error)};
  done_.push_back(event);
}

// mutex_ is held.
void Batch::TakeDone() {
  for (auto group = under_way_.begin(); group != under_way_.end();) {
    if (nacre_future_wait(group->future, 0) == EAGAIN) {
      ++group;
      continue;
    }
    End(*group);
    group = under_way_.erase(group);
  }
}

// Each file once. An event of a descriptor with O_SYNC tells of bytes that are on stable storage.
void Batch::SyncWritten(const std::vector<FilePtr>& files, std::vector<nacre_result>& results) {
  std::map<const File*, int> synced;
  for (size_t i = 0; i < files.size(); ++i) {
    if (!files[i]->is_synchronous() || results[i].error != 0) continue;
    const auto [file, fresh] = synced.try_emplace(files[i].get());
    if (fresh) file->second = nacre_file_sync(files[i]->handle());
    results[i].error = file->second;
  }
}

// mutex_ is held; the group's future is done.
void Batch::End(const Group& group) {
  std::vector<nacre_result> results(group.cookies.size(), nacre_result NACRE_RESULT_INIT);
  (void)nacre_future_results(group.future, results.data(), results.size());
  (void)nacre_future_free(group.future);
  if (group.writes) SyncWritten(group.files, results);
  for (size_t i = 0; i < results.size(); ++i) Finish(group.cookies[i], results[i].error, results[i].bytes);
}

CUfileError_t Batch::Reap(unsigned least, unsigned* count, CUfileIOEvents_t* events,
                          const timespec* timeout) {
  if (count == nullptr || (*count > 0 && events == nullptr) || least > *count) return Answer(kInvalidValue);
  std::optional<Clock::time_point> end;
  if (timeout != nullptr)
    end = Clock::now() + std::chrono::seconds(timeout->tv_sec) + std::chrono::nanoseconds(timeout->tv_nsec);
  unsigned reaped = 0;
  for (;;) {
    {
      std::lock_guard lock(mutex_);
      uint64_t told = 0;
      (void)!::read(event_, &told, sizeof told);  // before the look: what ends later tells again
      TakeDone();
      for (; reaped < *count && !done_.empty(); ++reaped, --taken_) {
        events[reaped] = done_.front();
        done_.pop_front();
      }
      if (reaped >= least || (under_way_.empty() && done_.empty())) break;
    }
    const int wait = Milliseconds(end);
    if (wait == 0) break;
    pollfd poll{event_, POLLIN, 0};
    (void)::poll(&poll, 1, wait);
  }
  *count = reaped;
  return Answer(kSuccess);
}

void Batch::Cancel() {
  std::lock_guard lock(mutex_);
  for (const Group& group : under_way_) (void)nacre_future_cancel(group.future);
  for (const Group& group : under_way_) {
    (void)nacre_future_wait(group.future, -1);
    (void)nacre_future_free(group.future);
  }
  under_way_.clear();
  done_.clear();
  taken_ = 0;
  const uint64_t ended = 1;
  (void)!::write(event_, &ended, sizeof ended);  // for who waits in Reap
}

}  // namespace nacre::cufile
