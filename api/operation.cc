#include "api/operation.h"

#include <absl/strings/str_format.h>

#include <algorithm>
#include <cerrno>

#include "api/call.h"
#include "api/devices.h"
#include "api/reader.h"
#include "api/small_reads.h"
#include "api/writer.h"
#include "transport/watchdog.h"

namespace nacre::api {

StatusOr<std::shared_ptr<Operation>> Operation::Make(Transfer transfer, const nacre_extent* extents,
                                                     size_t count, const nacre_io_options* options) {
  RETURN_IF_ERROR(CheckProcess());
  nacre_io_options io = NACRE_IO_OPTIONS_INIT;
  RETURN_IF_ERROR(ReadOptions(options, &io));
  if (io.timeout < 0) return ErrnoError(EINVAL, absl::StrFormat("a timeout of %d ns", io.timeout));
  ASSIGN_OR_RETURN(const std::vector<nacre_extent> copies, ReadArray(extents, count, "extents"));
  std::shared_ptr<Operation> operation(new Operation(transfer, count));
  for (size_t i = 0; i < count; ++i) {
    const Status added = operation->Add(i, copies[i]);
    if (!added.ok()) operation->outcomes_[i] = Failed(added);
  }
  if (io.timeout > 0) operation->timeout_ = std::chrono::nanoseconds(io.timeout);
  return operation;
}

Status Operation::Add(size_t index, const nacre_extent& raw) {
  const CheckedExtent* before = groups_.empty() ? nullptr : &groups_.back().extents.back();
  ASSIGN_OR_RETURN(CheckedExtent extent, CheckExtent(raw, before));
  if (!writes()) RETURN_IF_ERROR(CheckTarget(extent));
  RETURN_IF_ERROR(LookAt(extent));
  const std::shared_ptr<Client>& client = extent.file->client();
  if (std::ranges::find(clients_, client) == clients_.end()) clients_.push_back(client);
  const bool in_use = before != nullptr && before->file == extent.file && before->buffer == extent.buffer;
  if (!in_use && !extent.buffer->Begin()) return ErrnoError(EBADF, "the buffer is being released");
  const auto [place, fresh] = group_of_.TryEmplace(extent.file.get(), groups_.size());
  if (fresh) groups_.emplace_back();
  Group& group = groups_[*place];
  if (!in_use) group.buffers.push_back(extent.buffer);
  group.indices.push_back(index);
  group.extents.push_back(std::move(extent));
  return OkStatus();
}

// Once for each buffer: that costs calls of the driver.
Status Operation::LookAt(const CheckedExtent& extent) {
  if (extent.raw.buffer.id == 0) return OkStatus();  // that of loose memory was found by looking
  const auto [found, fresh] = looked_at_.TryEmplace(extent.raw.buffer.id);
  if (fresh) *found = CheckStillThere(*extent.buffer);
  return *found;
}

std::vector<std::shared_ptr<Buffer>> Operation::Buffers() const {
  std::vector<std::shared_ptr<Buffer>> buffers;
  for (const Group& group : groups_)
    buffers.insert(buffers.end(), group.buffers.begin(), group.buffers.end());
  return buffers;
}

// Without it the destructor has to give back what Add took.
Operation::~Operation() {
  if (begun_) return;
  for (const Group& group : groups_) {
    for (const auto& buffer : group.buffers) buffer->End();
  }
}

void Operation::Begin(std::shared_ptr<gpu::StreamOrder> order) {
  begun_ = true;
  order_ = std::move(order);
  left_ = groups_.size();
  if (groups_.empty()) {
    if (order_ != nullptr) order_->Release();
    return;
  }
  SetDeadline();
  for (const auto& client : clients_) {
    if (!client->Begin(this)) Cancel(ErrnoError(EBADF, "the client is being closed"));
  }
  if (order_ == nullptr) return StartGroups();
  clients_.front()->connection().Start(StartInTurn(shared_from_this()));
}

void Operation::SetDeadline() {
  const Duration deadline = DeadlineAfter(RealClock().Now(), timeout_);
  for (Group& group : groups_) {
    group.cancellation = std::make_shared<Cancellation>(deadline, [this, &group](const Status& why) {
      Finish(group, Outcome(group.indices.size(), Failed(why)));
    });
  }
  if (deadline == kNoDeadline) return;
  auto expire = [weak = weak_from_this(), timeout = timeout_] {
    auto self = weak.lock();
    if (self != nullptr)
      self->Cancel(ErrnoError(
          ETIMEDOUT,
          absl::StrFormat("not %s within %d ms", self->writes() ? "written" : "read", timeout / 1ms)));
  };
  timer_ = RealClock().After(clients_.front()->connection().executor(), timeout_, std::move(expire));
}

Task<void> Operation::StartInTurn(std::shared_ptr<Operation> self) {
  const Status arrived = co_await self->order_->Arrived();
  if (!arrived.ok()) self->Cancel(arrived);
  self->StartGroups();  // they notice if it was cancelled
}

void Operation::StartGroups() {
  for (size_t i = 0; i < groups_.size(); ++i) {
    std::vector<CheckedExtent> extents = std::move(groups_[i].extents);
    Client& client = *extents.front().file->client();
    if (writes())
      client.connection().Start(WriteGroup(shared_from_this(), i, std::move(extents)));
    else if (MayGoWithOthers(extents))
      ReadWithOthers(i, client.small_reads(), std::move(extents));
    else
      client.connection().Start(ReadGroup(shared_from_this(), i, std::move(extents)));
  }
}

// One that has to be done in time does not wait for others, and no others wait with the stream of another.
bool Operation::MayGoWithOthers(const std::vector<CheckedExtent>& extents) const {
  return order_ == nullptr && timeout_ == Duration::max() && SmallReads::Suit(extents);
}

void Operation::ReadWithOthers(size_t index, SmallReads& reads, std::vector<CheckedExtent> extents) {
  auto done = [self = shared_from_this(), index](std::span<const ExtentOutcome> outcomes) {
    self->Finish(self->groups_[index], outcomes);
  };
  reads.Add(std::move(extents), groups_[index].cancellation, std::move(done));
}

Task<void> Operation::ReadGroup(std::shared_ptr<Operation> self, size_t index,
                                std::vector<CheckedExtent> extents) {
  Group& group = self->groups_[index];
  Outcome outcome = co_await ReadTogether(extents, group.cancellation);
  const bool alone = extents.size() == 1 || outcome.front().status.ok() || !group.cancellation->status().ok();
  if (!alone) outcome = co_await ReadEach(extents, group.cancellation);
  self->Finish(group, outcome);
}

Task<void> Operation::WriteGroup(std::shared_ptr<Operation> self, size_t index,
                                 std::vector<CheckedExtent> extents) {
  Group& group = self->groups_[index];
  const Outcome outcome = co_await WriteTogether(std::move(extents), group.cancellation);
  self->Finish(group, outcome);
}

// The first outcome counts: the task's, or that it was cancelled.
void Operation::Finish(Group& group, std::span<const ExtentOutcome> outcomes) {
  bool last = false;
  std::vector<std::shared_ptr<EventFd>> events;
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(group.done, true)) return;
    for (size_t i = 0; i < group.indices.size(); ++i) outcomes_[group.indices[i]] = outcomes[i];
    last = --left_ == 0;
    if (last) events.swap(events_);
  }
  for (const auto& buffer : group.buffers) buffer->End();
  if (!last) return;
  if (order_ != nullptr) order_->Release();
  for (const auto& client : clients_) client->End(this);
  done_.notify_all();
  for (const auto& event : events) event->Add();
}

void Operation::Notify(std::shared_ptr<EventFd> event) {
  {
    std::lock_guard lock(mutex_);
    if (left_ > 0) return events_.push_back(std::move(event));
  }
  event->Add();
}

bool Operation::Wait(Duration timeout) {
  std::unique_lock lock(mutex_);
  auto done = [this] { return left_ == 0; };
  if (timeout >= Duration(0)) return done_.wait_for(lock, std::min<Duration>(timeout, kLongWait), done);
  done_.wait(lock, done);
  return true;
}

void Operation::Cancel(const Status& why) {
  for (Group& group : groups_) {
    group.cancellation->Cancel(why);
    for (const auto& client : clients_) client->small_reads().Stop(group.cancellation);
  }
}

Status Operation::Results(nacre_result* results, size_t count) {
  if (count > outcomes_.size()) {
    return ErrnoError(EINVAL, absl::StrFormat("%d results of %d extents", count, outcomes_.size()));
  }
  ASSIGN_OR_RETURN(const size_t stride, Stride(results, count, "results"));
  for (size_t i = 0; i < count; ++i)
    WriteStruct(outcomes_[i].Result(), stride, reinterpret_cast<std::byte*>(results) + i * stride);
  for (const ExtentOutcome& outcome : outcomes_) RETURN_IF_ERROR(outcome.status);
  return OkStatus();
}

}  // namespace nacre::api
