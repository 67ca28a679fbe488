#include "server/replication/pipeline.h"

#include <absl/container/flat_hash_set.h>

#include <algorithm>
#include <utility>

namespace nacre::replication {
namespace {

// Each change of a directory sets the directory's inode, too: what a later one of the group sets again need
// not be sent and stored.
Pipeline::Changes Last(std::vector<KvBatch::Op> ops) {
  absl::flat_hash_set<std::string_view> later;
  std::vector<size_t> kept;  // from the last to the first
  for (size_t i = ops.size(); i-- > 0;) {
    if (later.insert(ops[i].key).second) kept.push_back(i);
  }
  Pipeline::Changes changes;
  changes.ops.reserve(kept.size());
  for (auto i = kept.rbegin(); i != kept.rend(); ++i) {
    changes.bytes += ops[*i].key.size() + ops[*i].value.size();
    changes.ops.push_back(std::move(ops[*i]));
  }
  return changes;
}

}  // namespace

// --- changing ---

Task<Status> Pipeline::Change(KvBatch batch) {
  const uint64_t bytes = batch.bytes();
  bool waits = false;
  {
    std::lock_guard lock(mutex_);
    waits = at_door_ || !HasRoom(bytes);
  }
  if (waits) co_await AwaitRoom(bytes);
  CO_RETURN_IF_ERROR(store_.Admit(&batch));
  co_return Add(std::move(batch), bytes);
}

bool Pipeline::HasRoom(uint64_t bytes) const {
  return over_ || pending_bytes_ == 0 || pending_bytes_ + bytes <= kMostPending;
}

Task<void> Pipeline::AwaitRoom(uint64_t bytes) {
  const AsyncMutex::Guard turn = co_await door_.Lock();
  while (true) {
    OneShot<Unit> room;
    {
      std::unique_lock lock(mutex_);
      at_door_ = !HasRoom(bytes);
      if (!at_door_) co_return;
      room_ = room;
      RunIfWanted(std::move(lock));
    }
    co_await room.Wait();
  }
}

Status Pipeline::Add(KvBatch batch, uint64_t bytes) {
  std::unique_lock lock(mutex_);
  if (over_) return *over_;
  overlay_.Add(++made_, batch.ops());
  pending_bytes_ += bytes;
  waiting_bytes_ += bytes;
  waiting_.push_back({std::move(batch), made_, bytes});
  const bool gathers = !running_ && !Wanted() && !std::exchange(gathering_, true);
  RunIfWanted(std::move(lock));
  if (gathers) start_(Gather());
  return OkStatus();
}

// --- on the way ---

bool Pipeline::Wanted() const {
  return !waiting_.empty() && (!withheld_.empty() || waiting_bytes_ >= kEnough || at_door_ || gathered_);
}

void Pipeline::RunIfWanted(std::unique_lock<std::mutex> lock) {
  if (over_ || !Wanted() || std::exchange(running_, true)) return;
  lock.unlock();
  start_(Run());
}

Task<void> Pipeline::Run() {
  while (std::optional<Taken> taken = Take()) {
    Changes changes = Last(std::move(taken->ops));
    StatusOr<Store> store = co_await write_(std::move(changes));
    if (!store.ok()) co_return End(store.status());
    if (*store != nullptr) {
      start_(Finish(*std::move(store), taken->last, taken->bytes));
    } else {
      Keep(taken->last, taken->bytes);
    }
  }
}

Task<void> Pipeline::Finish(Store store, uint64_t last, uint64_t bytes) {
  Status stored = co_await store();
  if (!stored.ok()) co_return End(std::move(stored));
  Keep(last, bytes);
}

// Sends changes that nobody waits for: after kGather they count as wanted.
Task<void> Pipeline::Gather() {
  co_await clock_.Sleep(kGather);
  std::unique_lock lock(mutex_);
  gathering_ = false;
  gathered_ = !waiting_.empty();
  RunIfWanted(std::move(lock));
}

// Nothing: none is wanted. A task that wants one then begins anew.
std::optional<Pipeline::Taken> Pipeline::Take() {
  std::unique_lock lock(mutex_);
  running_ = Wanted();
  if (!running_) {
    const bool gathers = !waiting_.empty() && !std::exchange(gathering_, true);
    lock.unlock();
    if (gathers) start_(Gather());
    return std::nullopt;
  }
  gathered_ = false;
  Taken taken;
  while (!waiting_.empty()) {
    Waiting& next = waiting_.front();
    if (!taken.ops.empty() && taken.bytes + next.bytes > kMostTogether) break;
    taken.bytes += next.bytes;
    taken.last = next.number;
    std::vector<KvBatch::Op> ops = std::move(next.batch).TakeOps();
    std::move(ops.begin(), ops.end(), std::back_inserter(taken.ops));
    waiting_.pop_front();
  }
  waiting_bytes_ -= taken.bytes;
  return taken;
}

void Pipeline::Keep(uint64_t last, uint64_t bytes) {
  overlay_.Stored(last);
  std::unique_lock lock(mutex_);
  kept_ = std::max(kept_, last);  // another thread may have been quicker with the next group
  pending_bytes_ -= bytes;
  if (room_) std::exchange(room_, std::nullopt)->Set({});
  Release(std::move(lock));
}

void Pipeline::End(Status why) {
  std::unique_lock lock(mutex_);
  if (!over_) over_ = std::move(why);
  if (room_) std::exchange(room_, std::nullopt)->Set({});
  Release(std::move(lock));
}

// --- what leaves ---

void Pipeline::WhenKept(Done done) {
  std::unique_lock lock(mutex_);
  if (kept_ == made_ && withheld_.empty() && !releasing_) {
    lock.unlock();
    return done(true);
  }
  withheld_.push_back({made_, std::move(done)});
  if (over_) return Release(std::move(lock));
  RunIfWanted(std::move(lock));
}

// One at a time: what is withheld leaves in its order.
void Pipeline::Release(std::unique_lock<std::mutex> lock) {
  if (std::exchange(releasing_, true)) return;
  while (!withheld_.empty() && (over_ || withheld_.front().until <= kept_)) {
    Withheld next = std::move(withheld_.front());
    withheld_.pop_front();
    const bool kept = next.until <= kept_;
    lock.unlock();
    next.done(kept);
    lock.lock();
  }
  releasing_ = false;
}

Task<Status> Pipeline::AwaitKept() {
  OneShot<bool> kept;
  WhenKept([kept](bool yes) { kept.Set(yes); });
  const bool yes = co_await kept.Wait();
  if (yes) co_return OkStatus();
  co_return absl::UnavailableError("this MDS is not the primary any more");
}

}  // namespace nacre::replication
