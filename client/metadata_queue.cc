#include "client/metadata_queue.h"

#include <algorithm>
#include <cerrno>

#include "common/cancellation.h"
#include "rpc/convert.h"

namespace nacre::client {
namespace {

constexpr size_t kMostWaiting = 256;  // and as many in a batch
constexpr size_t kMostWaitingBytes = 1 << 20;
constexpr size_t kEnough = kMostWaiting / 4;
constexpr Duration kGather = std::chrono::milliseconds(1);
constexpr Duration kHurry = 20 * kGather;          // after somebody has waited
constexpr Duration kHurriedGather = kGather / 10;  // then

// The reply to the batch's mutation `index`, or why there is none.
StatusOr<proto::MetadataReply> ReplyTo(const StatusOr<proto::MetadataReply>& batch, int index) {
  RETURN_IF_ERROR(batch.status());
  if (index >= batch->batch().replies_size())
    return ErrnoError(EPROTO,
                      absl::StrFormat("the MDS has answered %d mutations of a batch, not the next one",
                                      batch->batch().replies_size()));
  const proto::MetadataReply& reply = batch->batch().replies(index);
  RETURN_IF_ERROR(FromProto(reply.status()));
  return reply;
}

}  // namespace

MetadataQueue::MetadataQueue(std::shared_ptr<Session> session, Clock& clock,
                             std::function<void(Task<void>)> background, std::function<void(bool)> allowed)
    : session_(std::move(session)),
      clock_(clock),
      background_(std::move(background)),
      allowed_(std::move(allowed)) {}

void MetadataQueue::Push(uint64_t epoch, proto::MetadataRequest mutation, Done done) {
  Item item;
  session_->Number(epoch, &mutation);
  item.epoch = epoch;
  item.bytes = mutation.ByteSizeLong();
  item.mutation = std::move(mutation);
  item.done = std::move(done);
  bool sending = false;
  {
    std::lock_guard lock(mutex_);
    ++pushed_;
    waiting_bytes_ += item.bytes;
    waiting_.push_back(std::move(item));
    sending = std::exchange(sending_, true);
  }
  if (sending) return HurryIfNeeded();
  background_(Send());
}

bool MetadataQueue::HasRoomLocked() const {
  return waiting_.size() < kMostWaiting && waiting_bytes_ < kMostWaitingBytes;
}

Task<Status> MetadataQueue::WaitForRoom() {
  for (;;) {
    OneShot<Unit> changed;
    {
      std::lock_guard lock(mutex_);
      if (HasRoomLocked()) co_return OkStatus();
      room_waiters_.push_back(changed);
    }
    CO_RETURN_IF_ERROR(co_await WaitUnlessCancelled(changed));
  }
}

bool MetadataQueue::Idle() {
  std::lock_guard lock(mutex_);
  return answered_ == pushed_;
}

Task<void> MetadataQueue::Drain(Hurry hurry) {
  Waiter waiter;
  {
    std::lock_guard lock(mutex_);
    if (answered_ == pushed_) co_return;
    waiter.until = pushed_;
    waiter.hurries = hurry == Hurry::kYes;
    if (waiter.hurries) hurry_until_ = clock_.Now() + kHurry;
    drains_.push_back(waiter);
  }
  HurryIfNeeded();
  co_await waiter.reached.Wait();
}

uint64_t MetadataQueue::pushed() {
  std::lock_guard lock(mutex_);
  return pushed_;
}

uint64_t MetadataQueue::answered() {
  std::lock_guard lock(mutex_);
  return answered_;
}

// --- sending ---

bool MetadataQueue::HurriesLocked() const {
  if (waiting_.size() >= kEnough || waiting_bytes_ >= kMostWaitingBytes / 4) return true;
  return std::ranges::any_of(drains_, &Waiter::hurries);
}

void MetadataQueue::HurryIfNeeded() {
  std::optional<OneShot<Unit>> gathering;
  {
    std::lock_guard lock(mutex_);
    if (HurriesLocked()) gathering = gathering_;
  }
  if (gathering) gathering->Set({});
}

// A batch costs the client and the MDS as much as some ten changes: fewer and larger ones leave more of both.
Task<void> MetadataQueue::Gather() {
  OneShot<Unit> over;
  Duration most = kGather;
  {
    std::lock_guard lock(mutex_);
    if (waiting_.empty() || HurriesLocked()) co_return;
    if (clock_.Now() < hurry_until_) most = kHurriedGather;
    gathering_ = over;
  }
  const Executor executor = co_await CurrentExecutor();
  const std::unique_ptr<TimerHandle> timer = clock_.After(executor, most, [over] { over.Set({}); });
  co_await over.Wait();
  std::lock_guard lock(mutex_);
  gathering_.reset();
}

Task<void> MetadataQueue::Send() {
  for (bool first = true;; first = false) {
    if (!first) co_await Gather();
    std::vector<Item> items = TakeBatch();
    if (items.empty()) co_return;
    proto::MetadataRequest batch;
    for (Item& item : items) *batch.mutable_batch()->add_requests() = std::move(item.mutation);
    auto reply = co_await session_->CallNumbered(items.front().epoch, std::move(batch));
    if (reply.ok()) allowed_(reply->batch().names_behind());
    Answer(items, reply);
    Count(items.size());
  }
}

// The oldest, of one session. None: nothing waits, and the next Push sends again.
std::vector<MetadataQueue::Item> MetadataQueue::TakeBatch() {
  std::vector<Item> items;
  std::vector<OneShot<Unit>> waiters;
  {
    std::lock_guard lock(mutex_);
    size_t bytes = 0;
    while (!waiting_.empty() && items.size() < kMostWaiting && bytes < kMostWaitingBytes) {
      if (!items.empty() && waiting_.front().epoch != items.front().epoch) break;
      bytes += waiting_.front().bytes;
      items.push_back(std::move(waiting_.front()));
      waiting_.pop_front();
    }
    waiting_bytes_ -= bytes;
    if (items.empty()) sending_ = false;
    if (HasRoomLocked()) waiters.swap(room_waiters_);
  }
  for (OneShot<Unit>& waiter : waiters) waiter.Set({});
  return items;
}

void MetadataQueue::Answer(std::vector<Item>& items, const StatusOr<proto::MetadataReply>& reply) {
  for (size_t i = 0; i < items.size(); ++i) items[i].done(ReplyTo(reply, static_cast<int>(i)));
}

void MetadataQueue::Count(size_t answered) {
  std::vector<Waiter> reached;
  {
    std::lock_guard lock(mutex_);
    answered_ += answered;
    auto later = std::partition(drains_.begin(), drains_.end(),
                                [this](const Waiter& waiter) { return waiter.until > answered_; });
    reached.assign(std::make_move_iterator(later), std::make_move_iterator(drains_.end()));
    drains_.erase(later, drains_.end());
  }
  for (Waiter& waiter : reached) waiter.reached.Set({});
}

}  // namespace nacre::client
