#include "client/metadata_queue.h"

#include <algorithm>
#include <cerrno>

#include "common/cancellation.h"
#include "rpc/convert.h"

namespace nacre::client {
namespace {

constexpr size_t kMostWaiting = 256;  // and as many in a batch
constexpr size_t kMostWaitingBytes = 1 << 20;
constexpr size_t kMostUnderWay = 4;  // batches
constexpr size_t kEnough = kMostWaiting / kMostUnderWay;
constexpr size_t kEnoughBytes = kMostWaitingBytes / kMostUnderWay;
constexpr Duration kGather = std::chrono::milliseconds(4);
constexpr Duration kHurry = std::chrono::milliseconds(20);           // after somebody has waited
constexpr Duration kHurriedGather = std::chrono::microseconds(100);  // then

// Takes the reply to the batch's mutation `index` out of it, or says why there is none.
StatusOr<proto::MetadataReply> TakeReply(StatusOr<proto::MetadataReply>* batch, int index) {
  RETURN_IF_ERROR(batch->status());
  proto::BatchReply& replies = *(*batch)->mutable_batch();
  if (index >= replies.replies_size())
    return ErrnoError(EPROTO,
                      absl::StrFormat("the MDS has answered %d mutations of a batch, not the next one",
                                      replies.replies_size()));
  proto::MetadataReply& reply = *replies.mutable_replies(index);
  RETURN_IF_ERROR(FromProto(reply.status()));
  return std::move(reply);
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

bool MetadataQueue::EnoughLocked(size_t times) const {
  return waiting_.size() >= times * kEnough || waiting_bytes_ >= times * kEnoughBytes;
}

bool MetadataQueue::HurriesLocked() const {
  if (EnoughLocked(1)) return true;
  return std::ranges::any_of(drains_,
                             [this](const Waiter& one) { return one.hurries && one.until > taken_; });
}

void MetadataQueue::HurryIfNeeded() {
  std::vector<OneShot<Unit>> waiters;
  {
    std::lock_guard lock(mutex_);
    if (gathering_ && HurriesLocked()) waiters.push_back(*gathering_);
    if (next_ && MayGoLocked()) waiters.push_back(*std::exchange(next_, std::nullopt));
  }
  for (OneShot<Unit>& waiter : waiters) waiter.Set({});
}

// Beside batches that are under way another one goes only when it is worth it. The more they are, the more
// has to wait for it: an MDS that is done with them sooner than the changes come gets few and large ones.
bool MetadataQueue::MayGoLocked() const {
  if (under_way_ == 0) return true;
  if (under_way_ == kMostUnderWay || !session_->OrdersBatches()) return false;
  return EnoughLocked(under_way_) || (under_way_ == 1 && HurriesLocked());
}

Task<void> MetadataQueue::AwaitTurn() {
  for (;;) {
    OneShot<Unit> turn;
    {
      std::lock_guard lock(mutex_);
      if (MayGoLocked()) co_return;
      next_ = turn;
    }
    co_await turn.Wait();
  }
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

// Never begins within Push, whose caller may hold mutexes: an answer that is there at once, since the session
// has ended, would be told to those who need them.
Task<void> MetadataQueue::Send() {
  co_await Yield();
  for (bool first = true;; first = false) {
    if (!first) {
      co_await AwaitTurn();
      co_await Gather();
    }
    std::optional<Batch> batch = TakeBatch();
    if (!batch) co_return;
    background_(SendBatch(*std::move(batch)));
  }
}

// Outcomes are told in the order of the batches, whichever is answered first.
Task<void> MetadataQueue::SendBatch(Batch batch) {
  proto::MetadataRequest request;
  request.mutable_batch()->set_after(batch.after);
  for (Item& item : batch.items) *request.mutable_batch()->add_requests() = std::move(item.mutation);
  auto reply = co_await session_->CallNumbered(batch.items.front().epoch, std::move(request));
  if (batch.before) co_await batch.before->Wait();
  if (reply.ok()) allowed_(reply->batch().names_behind());
  Answer(batch.items, std::move(reply));
  Count(batch.items.size());
  batch.over.Set({});
  {
    std::lock_guard lock(mutex_);
    --under_way_;
  }
  HurryIfNeeded();
}

// The oldest, of one session. None: nothing waits, and the next Push sends again.
std::optional<MetadataQueue::Batch> MetadataQueue::TakeBatch() {
  Batch batch;
  std::vector<OneShot<Unit>> waiters;
  {
    std::lock_guard lock(mutex_);
    size_t bytes = 0;
    std::vector<Item>& items = batch.items;
    while (!waiting_.empty() && items.size() < kMostWaiting && bytes < kMostWaitingBytes) {
      if (!items.empty() && waiting_.front().epoch != items.front().epoch) break;
      bytes += waiting_.front().bytes;
      items.push_back(std::move(waiting_.front()));
      waiting_.pop_front();
    }
    waiting_bytes_ -= bytes;
    taken_ += items.size();
    if (items.empty()) {
      sending_ = false;
    } else {
      if (under_way_ > 0) batch.before = newest_over_;
      if (under_way_ > 0 && newest_epoch_ == items.front().epoch) batch.after = newest_last_;
      newest_over_ = batch.over;
      newest_epoch_ = items.back().epoch;
      newest_last_ = items.back().mutation.sequence();
      ++under_way_;
    }
    if (HasRoomLocked()) waiters.swap(room_waiters_);
  }
  for (OneShot<Unit>& waiter : waiters) waiter.Set({});
  if (batch.items.empty()) return std::nullopt;
  return batch;
}

void MetadataQueue::Answer(std::vector<Item>& items, StatusOr<proto::MetadataReply> reply) {
  for (size_t i = 0; i < items.size(); ++i) items[i].done(TakeReply(&reply, static_cast<int>(i)));
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
