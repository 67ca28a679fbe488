#include "rpc/grpc_completions.h"

#include <utility>

namespace nacre {
namespace {

// The most tasks that go on on the thread of a turn: those of a message, which is a request, or the answer
// that a task has waited for.
constexpr int kChains = 4;
// Between two looks of the second thread whether the first is in a turn; and, if it is, whether it still is.
// An idle process should be idle.
constexpr Duration kWatching = std::chrono::milliseconds(200);
constexpr Duration kLong = std::chrono::milliseconds(2);

// The Completions whose first thread this is.
constinit thread_local Completions* leads = nullptr;

void React(void* tag, bool ok) { static_cast<Completion*>(tag)->Done(ok); }

}  // namespace

gpr_timespec DeadlineIn(Duration duration) {
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_nanos(duration.count(), GPR_TIMESPAN));
}

Completions::Completions(std::unique_ptr<grpc::CompletionQueue> queue)
    : queue_(std::move(queue)), first_([this] { Lead(); }), second_([this] { StandBy(); }) {}

Completions::~Completions() {
  queue_->Shutdown();
  first_.join();
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
  }
  end_.notify_all();
  second_.join();
}

Completions& Completions::OfChannels() {
  static auto* const completions = new Completions(std::make_unique<grpc::CompletionQueue>());
  return *completions;
}

void Completions::Lead() {
  leads = this;
  void* tag = nullptr;
  bool ok = false;
  while (queue_->Next(&tag, &ok)) React(tag, ok);
}

void Completions::StandBy() {
  uint64_t before = 0;
  for (bool in_turn = false; Nap(in_turn ? kLong : kWatching);) {
    const uint64_t now = turns_.load();
    if (in_turn && now == before) StandIn(now);
    before = turns_.load();
    in_turn = before % 2 == 1;
  }
}

// A task holds up the first thread: a disk does not answer, for instance. Others must not wait for that.
void Completions::StandIn(uint64_t turn) {
  TellHeldUp(turn);
  void* tag = nullptr;
  bool ok = false;
  while (turns_.load() == turn) {
    if (queue_->AsyncNext(&tag, &ok, DeadlineIn(kLong)) == grpc::CompletionQueue::GOT_EVENT) React(tag, ok);
  }
}

// False: the end.
bool Completions::Nap(Duration duration) {
  std::unique_lock lock(mutex_);
  return !end_.wait_for(lock, duration, [this] { return ending_; });
}

void Completions::SetTurn(GrpcTurn* turn) {
  std::lock_guard lock(turn_mutex_);
  turn_ = turn;
  ++turns_;
}

void Completions::TellHeldUp(uint64_t turn) {
  std::lock_guard lock(turn_mutex_);
  if (turns_.load() == turn) std::exchange(turn_->behind_, nullptr)();
}

GrpcTurn::GrpcTurn(bool lone, const std::shared_ptr<Guests>& guests, const Executor& executor,
                   absl::AnyInvocable<void()> behind)
    : behind_(std::move(behind)) {
  if (!lone || leads == nullptr || guests == nullptr || !guests->TryEnter()) return;
  completions_ = leads;
  guests_ = guests.get();
  turn_.emplace(executor, kChains);
}

// The second thread may only stand in for the tasks: a reaction still uses what it has read, and `behind`
// reads into that again.
GrpcTurn::~GrpcTurn() {
  if (completions_ != nullptr) {
    completions_->SetTurn(this);
    turn_.reset();
    completions_->SetTurn(nullptr);
    guests_->Leave();
  }
  if (behind_) behind_();
}

}  // namespace nacre
