#include "transport/verbs/rail.h"

#include <absl/strings/str_format.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/defer.hpp>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <cstring>
#include <thread>

#include "common/log.h"
#include "common/metrics.h"
#include "common/turn.h"

namespace nacre::verbs {
namespace {

constexpr int kMaxCompletions = 96 << 10;  // in the queue: 6 MiB of it on common devices
constexpr int kMaxReceives = 32 << 10;     // for 1700 connections
constexpr int kBatch = 32;
constexpr int kPollsInARow = 32;  // a look takes less than the executor does for a turn
constexpr Duration kDeviceWatch = std::chrono::seconds(1);

Status Failure(const PortInfo& port, const char* what) {
  return absl::UnavailableError(absl::StrFormat("%s: no %s: %s", port.name(), what, std::strerror(errno)));
}

void MakeNonBlocking(int fd) { ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK); }

}  // namespace

StatusOr<std::shared_ptr<Rail>> Rail::Open(const Ibverbs& ibverbs, const PortInfo& port, Executor executor,
                                           Clock& clock, const RailOptions& options) {
  ASSIGN_OR_RETURN(std::shared_ptr<Domain> domain, Domain::Open(ibverbs, port.device));
  std::shared_ptr<Rail> rail(new Rail(std::move(domain), port, std::move(executor), clock, options));
  RETURN_IF_ERROR(rail->Create());
  return rail;
}

Rail::Rail(std::shared_ptr<Domain> domain, const PortInfo& port, Executor executor, Clock& clock,
           const RailOptions& options)
    : domain_(std::move(domain)),
      ibverbs_(domain_->ibverbs()),
      port_(port),
      executor_(executor),
      clock_(clock),
      lost_after_(options.lost_after),
      buffers_(domain_, options.receive),
      staging_(std::make_shared<Staging>(domain_)),
      puts_(std::make_shared<PutBudget>(options.put_budget)),
      turns_(options.transfer_budget),
      patience_(options.spin),
      completion_events_(executor),
      async_events_(executor) {}

Status Rail::Create() {
  const ibv_device_attr& limits = domain_->limits();
  device_path_ = domain_->context()->device->dev_path;
  channel_ = ibverbs_.create_comp_channel(domain_->context());
  if (channel_ == nullptr) return Failure(port_, "completion channel");
  max_completions_ = static_cast<uint32_t>(std::min(limits.max_cqe, kMaxCompletions));
  cq_ = ibverbs_.create_cq(domain_->context(), static_cast<int>(max_completions_), nullptr, channel_, 0);
  if (cq_ == nullptr) return Failure(port_, "completion queue");
  max_receives_ = static_cast<uint32_t>(std::min(limits.max_srq_wr, kMaxReceives));
  ibv_srq_init_attr attr{};
  attr.attr.max_wr = max_receives_;
  attr.attr.max_sge = 1;
  srq_ = ibverbs_.create_srq(domain_->pd(), &attr);
  if (srq_ == nullptr) return Failure(port_, "shared receive queue");
  MakeNonBlocking(channel_->fd);
  MakeNonBlocking(domain_->context()->async_fd);
  boost::system::error_code error;
  completion_events_.assign(channel_->fd, error);
  if (!error) async_events_.assign(domain_->context()->async_fd, error);
  return error ? ErrnoError(error.value(), error.message()) : OkStatus();
}

Rail::~Rail() {
  if (domain_->stranded()) {
    Close();
    return;
  }
  // The descriptors belong to the library.
  if (completion_events_.is_open()) completion_events_.release();
  if (async_events_.is_open()) async_events_.release();
  if (srq_ != nullptr) ibverbs_.destroy_srq(srq_);
  if (cq_ != nullptr) ibverbs_.destroy_cq(cq_);
  if (channel_ != nullptr) ibverbs_.destroy_comp_channel(channel_);
}

// The memory that the library still has for the completion queue and the receive queue goes with the process;
// the kernel and the device forget them.
void Rail::Close() {
  if (!domain_->stranded()) return;
  {
    std::lock_guard lock(mutex_);
    boost::system::error_code ignored;
    if (completion_events_.is_open()) completion_events_.close(ignored);  // nobody else will
    if (async_events_.is_open()) async_events_.release();
  }
  if (domain_->Close())
    LogInfo("data plane: %s has been closed, and the memory of its calls is free", port_.name());
}

Status Rail::Join(uint32_t queue_pair, std::shared_ptr<CompletionSink> sink, uint32_t receives,
                  uint32_t sends) {
  std::lock_guard lock(mutex_);
  if (!failed_.ok()) return failed_;
  if (wanted_receives_ + receives > max_receives_ || std::max(posted_receives_, wanted_receives_ + receives) +
                                                             receives_.given_up() + reserved_sends_ + sends >
                                                         max_completions_) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("%s serves %d connections already, as many as it can", port_.name(), sinks_.size()));
  }
  for (; posted_receives_ < wanted_receives_ + receives; ++posted_receives_) {
    ASSIGN_OR_RETURN(uint32_t buffer, buffers_.Take());
    Status posted = PostReceive(buffer);
    if (posted.ok()) continue;
    buffers_.Return(buffer);
    return posted;
  }
  wanted_receives_ += receives;
  reserved_sends_ += sends;
  sinks_[queue_pair] = {std::move(sink), receives_.Joined()};
  if (!std::exchange(looping_, true)) asio::post(executor_, [self = shared_from_this()] { self->Poll(); });
  if (!std::exchange(awaiting_async_, true)) WaitForAsyncEvent();
  if (device_timer_ == nullptr) WatchDevice();
  return OkStatus();
}

void Rail::Leave(uint32_t queue_pair, uint32_t receives, uint32_t sends) {
  absl::AnyInvocable<void()> on_failure;
  {
    std::lock_guard lock(mutex_);
    wanted_receives_ -= receives;
    reserved_sends_ -= sends;
    if (auto left = sinks_.find(queue_pair); left != sinks_.end()) {
      receives_.Left(left->second.number);
      sinks_.erase(left);
    }
    if (!sinks_.empty()) return;
    boost::system::error_code ignored;
    completion_events_.cancel(ignored);
    async_events_.cancel(ignored);
    if (resting_ || !failed_.ok()) device_timer_.reset();
    on_failure = TakeOnFailure();
  }
  if (on_failure) on_failure();
}

absl::AnyInvocable<void()> Rail::TakeOnFailure() {
  if (failed_.ok() || !sinks_.empty() || looping_ || awaiting_async_) return nullptr;
  return std::exchange(on_failure_, nullptr);
}

// Some drivers cannot take a device away from who has it open: its removal then waits for us without an
// event, and all there is to see is that it has left sysfs.
void Rail::WatchDevice() {
  device_timer_ = clock_.After(executor_, kDeviceWatch, [weak = weak_from_this()] {
    if (auto self = weak.lock()) self->LookAtDevice();
  });
}

void Rail::LookAtDevice() {
  if (::access(device_path_.c_str(), F_OK) != 0) {
    Fail(absl::UnavailableError("the device has been removed"));
  }
  const Duration now = clock_.Now();
  for (const auto& sink : Sinks()) sink->OnTick(now);
  ReplaceLostReceives();
  std::lock_guard lock(mutex_);
  if (sinks_.empty() && (resting_ || !failed_.ok())) return device_timer_.reset();
  WatchDevice();
}

void Rail::ReplaceLostReceives() {
  ReceiveLedger::Losses losses = receives_.Look();
  for (uint32_t buffer : losses.given_back) buffers_.Return(buffer);
  if (losses.missing == 0 || failed()) return;
  GetCounter("transport.verbs.receives_lost").Add(static_cast<int64_t>(losses.missing));
  LogDebug("data plane: %s: connections have taken %d receives along", port_.name(), losses.missing);
  for (size_t i = 0; i < losses.missing; ++i) {
    const StatusOr<uint32_t> buffer = buffers_.Take();
    if (!buffer.ok()) return Fail(buffer.status());
    const auto use = domain_->Use();
    if (use && PostReceive(*buffer).ok()) continue;
    buffers_.Return(*buffer);  // some drivers go on counting those that are lost, and have no place for more
    return;
  }
}

void Rail::Watch() {
  std::lock_guard lock(mutex_);
  if (device_timer_ == nullptr && !resting_ && failed_.ok()) WatchDevice();
}

void Rail::Rest() {
  std::lock_guard lock(mutex_);
  resting_ = true;
  if (sinks_.empty()) device_timer_.reset();
}

Status Rail::PostReceive(uint32_t buffer) {
  ibv_sge piece{reinterpret_cast<uint64_t>(buffers_.data(buffer)), buffers_.size(),
                buffers_.local_key(buffer)};
  ibv_recv_wr request{};
  request.wr_id = kReceiveId | buffer;
  request.sg_list = &piece;
  request.num_sge = 1;
  ibv_recv_wr* bad = nullptr;
  receives_.Posted(buffer);
  const int error = ibv_post_srq_recv(srq_, &request, &bad);
  if (error == 0) return OkStatus();
  receives_.NotPosted(buffer);
  return ErrnoError(
      error, absl::StrFormat("%s: a receive cannot be posted: %s", port_.name(), std::strerror(error)));
}

std::shared_ptr<CompletionSink> Rail::Find(uint32_t queue_pair) {
  std::lock_guard lock(mutex_);
  auto found = sinks_.find(queue_pair);
  return found == sinks_.end() ? nullptr : found->second.sink;
}

std::vector<std::shared_ptr<CompletionSink>> Rail::Sinks() {
  std::vector<std::shared_ptr<CompletionSink>> sinks;
  std::lock_guard lock(mutex_);
  for (const auto& [queue_pair, joined] : sinks_) sinks.push_back(joined.sink);
  return sinks;
}

void Rail::Fail(const Status& why) {
  absl::AnyInvocable<void()> on_failure;
  {
    std::lock_guard lock(mutex_);
    if (!failed_.ok()) return;
    failed_ = why;
    on_failure = TakeOnFailure();
  }
  LogWarning("data plane: RDMA on %s has ended: %s", port_.name(), why.message());
  GetCounter("transport.verbs.rails_failed").Add();
  for (const auto& sink : Sinks()) sink->OnFailed(why);
  if (on_failure) on_failure();
}

void Rail::Strand(const Status& why) {
  GetCounter("transport.verbs.refused_to_destroy").Add();
  if (domain_->Strand()) {
    LogWarning("data plane: %s: %s; the memory of the calls over it is kept until it has been closed",
               port_.name(), why.message());
  }
  Fail(why);
}

bool Rail::failed() const {
  std::lock_guard lock(mutex_);
  return !failed_.ok();
}

// One round of the loop, which goes on until there are no connections.
void Rail::Poll() {
  if (polled_for_.load()) {
    std::vector<absl::AnyInvocable<void()>> waiters;
    {
      std::lock_guard lock(mutex_);
      polled_for_.store(false);
      waiters.swap(after_poll_);
    }
    PollFor(std::move(waiters));
  }
  Turn turn(executor_, /*chains=*/1);  // who waits for what comes
  int found = PollOnce();
  for (int i = 1; i < kPollsInARow && found == 0; ++i) found = PollOnce();
  came_ |= found > 0;
  if (found == 0 && !IsBusy() && Sleep()) return;
  if (found == 0) std::this_thread::yield();  // to who shall answer, if it waits for this CPU
  auto again = [self = shared_from_this()] { self->Poll(); };
  if (turn.has_chains()) {
    asio::post(executor_, std::move(again));  // another thread may, meanwhile
  } else {
    asio::defer(executor_, std::move(again));
  }
}

// Nothing has come just now: whether something is likely to, soon. The clock is read only here, since while
// completions come nobody needs it and in some machines it is dear.
bool Rail::IsBusy() {
  const Duration now = clock_.Now();
  if (std::exchange(came_, false)) {
    patience_.Came(last_completion_, now);
    last_active_ = last_completion_ = now;
  }
  return now - last_active_ < patience_.current();
}

void Rail::PollFor(std::vector<absl::AnyInvocable<void()>> waiters) {
  while (PollOnce() == kBatch) {
  }
  for (auto& waiter : waiters) waiter();
}

void Rail::AfterNextPoll(absl::AnyInvocable<void()> function) {
  std::lock_guard lock(mutex_);
  after_poll_.push_back(std::move(function));
  polled_for_.store(true);
  boost::system::error_code ignored;
  completion_events_.cancel(ignored);  // it may sleep
}

int Rail::PollOnce() {
  std::array<ibv_wc, kBatch> completions;
  const int count = ibv_poll_cq(cq_, kBatch, completions.data());
  if (count < 0) Fail(absl::UnavailableError("its completion queue cannot be polled"));
  for (int i = 0; i < count; ++i) Dispatch(completions[i]);
  return count;
}

void Rail::Dispatch(const ibv_wc& completion) {
  const std::shared_ptr<CompletionSink> sink = Find(completion.qp_num);
  Status status;
  if (completion.status != IBV_WC_SUCCESS) {
    status = absl::UnavailableError(
        absl::StrFormat("%s: %s", port_.name(), ibverbs_.wc_status_str(completion.status)));
  }
  if ((completion.wr_id & kReceiveId) == 0) {
    if (sink != nullptr) sink->OnSent(completion.wr_id, status);
    return;
  }
  const auto buffer = static_cast<uint32_t>(completion.wr_id & ~kReceiveId);
  const bool goes_on = receives_.CameBack(buffer);
  if (sink != nullptr && status.ok()) {
    // A write with immediate data takes a receive and leaves in it what somebody else has sent before.
    const uint32_t length =
        completion.opcode == IBV_WC_RECV ? std::min<uint32_t>(completion.byte_len, buffers_.size()) : 0;
    sink->OnReceived(std::span(buffers_.data(buffer), length));
  } else if (sink != nullptr) {
    sink->OnFailed(status);
  }
  if (!goes_on) return buffers_.Return(buffer);
  Status posted = PostReceive(buffer);
  if (!posted.ok()) Fail(posted);
}

// Arms the completion channel and waits for it, unless something has come until then.
bool Rail::Sleep() {
  if (ibv_req_notify_cq(cq_, 0) != 0) {
    Fail(absl::UnavailableError("its completion channel cannot be armed"));
  } else if (PollOnce() > 0) {
    came_ = true;
    return false;
  }
  absl::AnyInvocable<void()> on_failure;
  {
    std::lock_guard lock(mutex_);
    if (!after_poll_.empty()) return false;
    looping_ = !sinks_.empty();
    if (looping_) {
      WaitForCompletion();
      return true;
    }
    on_failure = TakeOnFailure();
  }
  if (on_failure) on_failure();
  return true;
}

void Rail::WaitForCompletion() {
  completion_events_.async_wait(asio::posix::stream_descriptor::wait_read,
                                [self = shared_from_this()](const boost::system::error_code&) {
                                  self->ConsumeEvents();
                                  self->Poll();
                                });
}

void Rail::ConsumeEvents() {
  ibv_cq* cq = nullptr;
  void* context = nullptr;
  unsigned count = 0;
  while (ibverbs_.get_cq_event(channel_, &cq, &context) == 0) ++count;
  if (count > 0) ibverbs_.ack_cq_events(cq_, count);
  last_active_ = clock_.Now();
}

void Rail::WaitForAsyncEvent() {
  async_events_.async_wait(
      asio::posix::stream_descriptor::wait_read,
      [self = shared_from_this()](const boost::system::error_code&) { self->OnAsyncEvents(); });
}

void Rail::OnAsyncEvents() {
  ibv_async_event event;
  while (ibverbs_.get_async_event(domain_->context(), &event) == 0) {
    Status status = HandleAsyncEvent(event);
    ibverbs_.ack_async_event(&event);
    if (!status.ok()) Fail(status);
  }
  absl::AnyInvocable<void()> on_failure;
  {
    std::lock_guard lock(mutex_);
    awaiting_async_ = !sinks_.empty();
    if (awaiting_async_) return WaitForAsyncEvent();
    on_failure = TakeOnFailure();
  }
  if (on_failure) on_failure();
}

bool Rail::HasItsGid() const {
  ibv_gid_entry entry{};
  return ibverbs_.query_gid_ex(domain_->context(), port_.port, port_.gid_index, &entry, 0, sizeof entry) ==
             0 &&
         std::memcmp(entry.gid.raw, port_.gid.data(), port_.gid.size()) == 0;
}

// An error: the rail cannot be used any more.
Status Rail::HandleAsyncEvent(const ibv_async_event& event) {
  const char* name = ibverbs_.event_type_str(event.event_type);
  LogDebug("data plane: %s: %s", port_.name(), name);
  switch (event.event_type) {
    case IBV_EVENT_DEVICE_FATAL:
    case IBV_EVENT_CQ_ERR:
    case IBV_EVENT_SRQ_ERR:
      return absl::UnavailableError(name);
    case IBV_EVENT_PORT_ERR:
    case IBV_EVENT_LID_CHANGE:
      return event.element.port_num == port_.port ? absl::UnavailableError(name) : OkStatus();
    case IBV_EVENT_GID_CHANGE:
      return HasItsGid() ? OkStatus() : absl::UnavailableError("its address has changed");
    case IBV_EVENT_QP_LAST_WQE_REACHED:
      if (auto sink = Find(event.element.qp->qp_num)) sink->OnLastReceive();
      return OkStatus();
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
      if (auto sink = Find(event.element.qp->qp_num)) sink->OnFailed(absl::UnavailableError(name));
      return OkStatus();
    default:
      return OkStatus();
  }
}

}  // namespace nacre::verbs
