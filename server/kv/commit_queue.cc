#include "server/kv/commit_queue.h"

namespace nacre {
namespace {

constexpr uint64_t kMostTogether = 1 << 20;  // bytes of one write, unless the leader's batch alone is longer

}  // namespace

Task<Status> CommitQueue::Commit(KvBatch batch) {
  Commitment self;
  self.batch = std::move(batch);
  self.bytes = self.batch.bytes();
  const bool waits = !Enter(&self);
  if (self.batch.placed()) self.batch.placed()->Set({});
  if (waits) {
    const bool leads = co_await self.turn->Wait();
    if (!leads) co_return std::move(self.status);
  }
  const Group group = TakeGroup(&self);
  co_await write_(group);
  Leave(group);
  co_return std::move(self.status);
}

bool CommitQueue::Enter(Commitment* self) {
  std::lock_guard lock(mutex_);
  if (!std::exchange(writing_, true)) return true;
  self->turn.emplace();
  waiting_.push_back(self);
  return false;
}

CommitQueue::Group CommitQueue::TakeGroup(Commitment* leader) {
  Group group(1, leader);
  uint64_t bytes = leader->bytes;
  std::lock_guard lock(mutex_);
  while (!waiting_.empty() && bytes + waiting_.front()->bytes <= kMostTogether) {
    bytes += waiting_.front()->bytes;
    group.push_back(waiting_.front());
    waiting_.pop_front();
  }
  return group;
}

void CommitQueue::Leave(const Group& group) {
  // Copies: a commitment is gone as soon as its caller knows.
  absl::InlinedVector<OneShot<bool>, 8> written;
  for (size_t i = 1; i < group.size(); ++i) written.push_back(*group[i]->turn);
  std::optional<OneShot<bool>> next;
  {
    std::lock_guard lock(mutex_);
    writing_ = !waiting_.empty();
    if (writing_) {
      next = waiting_.front()->turn;
      waiting_.pop_front();
    }
  }
  if (next) next->Set(true);
  for (const OneShot<bool>& one : written) one.Set(false);
}

}  // namespace nacre
