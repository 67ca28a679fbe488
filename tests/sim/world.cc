#include "tests/sim/world.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cstdio>

namespace nacre::sim {
namespace {

constexpr int64_t kWallStart = 1'700'000'000;  // any time will do, as long as it is always the same
constexpr uint64_t kMaxStepsWithoutTime = 2'000'000;

}  // namespace

asio::execution_context& SimExecutor::query(asio::execution::context_t) const noexcept {
  return process_->context_;
}

void SimExecutor::Post(absl::AnyInvocable<void()> function) const { process_->Post(std::move(function)); }

// --- clock ---

class SimClock::Handle : public TimerHandle {
 public:
  Handle(SimClock& clock, Key key, std::shared_ptr<bool> cancelled)
      : clock_(clock), key_(key), cancelled_(std::move(cancelled)) {}
  ~Handle() override {
    *cancelled_ = true;
    auto found = clock_.timers_.find(key_);
    if (found == clock_.timers_.end()) return;
    auto dropped = std::move(found->second);
    clock_.timers_.erase(found);
  }

 private:
  SimClock& clock_;
  const Key key_;
  const std::shared_ptr<bool> cancelled_;
};

WallTime SimClock::Wall() {
  const int64_t nanos = now_.count();
  return {kWallStart + nanos / 1'000'000'000, static_cast<uint32_t>(nanos % 1'000'000'000)};
}

std::unique_ptr<TimerHandle> SimClock::After(const Executor& executor, Duration delay,
                                             absl::AnyInvocable<void()> function) {
  const Key key{now_ + std::max(delay, Duration{0}), next_++};
  auto cancelled = std::make_shared<bool>(false);
  timers_.emplace(key, [executor, cancelled, function = std::move(function)]() mutable {
    asio::post(executor, [cancelled, function = std::move(function)]() mutable {
      if (!*cancelled) function();
    });
  });
  return std::make_unique<Handle>(*this, key, std::move(cancelled));
}

void SimClock::At(Duration delay, absl::AnyInvocable<void()> function) {
  timers_.emplace(Key{now_ + std::max(delay, Duration{0}), next_++}, std::move(function));
}

bool SimClock::Advance(Duration limit) {
  if (timers_.empty() || timers_.begin()->first.first > limit) {
    now_ = std::max(now_, limit);
    return false;
  }
  auto due = timers_.extract(timers_.begin());
  now_ = due.key().first;
  due.mapped()();
  return true;
}

// --- processes ---

struct Process::Waiter {
  absl::AnyInvocable<void()> resume;
  std::weak_ptr<void> children;
  std::list<std::shared_ptr<Waiter>>::iterator place;
  bool listed = true;
};

Process::Process(World& world, int node, std::string name, uint64_t seed, int64_t wall_offset)
    : world_(world),
      node_(node),
      name_(std::move(name)),
      random_(seed),
      clock_(world.clock(), std::chrono::seconds(seed % 1'000'000), wall_offset) {}

Process::~Process() { DropPending(); }

void Process::Post(absl::AnyInvocable<void()> function) {
  queue_.push_back(std::move(function));  // of a dead process: destroyed with it
}

absl::AnyInvocable<void()> Process::Track(absl::AnyInvocable<void()> resume, std::weak_ptr<void> children) {
  auto waiter = std::make_shared<Waiter>();
  waiter->resume = std::move(resume);
  waiter->children = std::move(children);
  waiter->place = waiters_.insert(waiters_.end(), waiter);
  return [this, waiter = std::move(waiter)] {
    if (!waiter->listed) return;
    waiter->listed = false;
    waiters_.erase(waiter->place);
    auto resume = std::move(waiter->resume);
    resume();
  };
}

void Process::RunOne(bool shuffle) {
  const size_t place = shuffle ? world_.random().Below(std::min<size_t>(queue_.size(), 4)) : 0;
  auto function = std::move(queue_[place]);
  queue_.erase(queue_.begin() + static_cast<ptrdiff_t>(place));
  suspension_tracker = this;
  function();
  function = nullptr;
  suspension_tracker = nullptr;
}

// Destroying a coroutine may post the next one's destruction, wake others, or cancel timers: until nothing is
// left. A coroutine that waits for tasks of its own goes after them.
void Process::DropPending() {
  while (!queue_.empty() || !waiters_.empty()) {
    if (!queue_.empty()) {
      auto dropped = std::move(queue_.front());
      queue_.pop_front();
      continue;
    }
    auto childless = std::find_if(waiters_.begin(), waiters_.end(),
                                  [](const auto& waiter) { return waiter->children.expired(); });
    auto waiter = childless == waiters_.end() ? waiters_.front() : *childless;
    waiters_.erase(waiter->place);
    waiter->listed = false;
    auto dropped = std::move(waiter->resume);
  }
}

void Process::End() {
  alive_ = false;
  SuspensionTracker* const before = std::exchange(suspension_tracker, this);
  for (auto& function : at_death_) function();
  at_death_.clear();
  context_.shutdown();
  DropPending();
  while (!owned_.empty()) {
    owned_.pop_back();
    DropPending();
  }
  suspension_tracker = before;
}

// --- world ---

World::World(uint64_t seed, bool print_trace) : seed_(seed), print_trace_(print_trace), random_(seed) {
  shuffle_ = random_.OneIn(2);
}

World::~World() { KillAll(); }

void World::KillAll() {
  while (!living_.empty()) Kill(living_.back());
}

Process* World::Start(int node, const std::string& name, int64_t wall_offset) {
  processes_.push_back(std::make_unique<Process>(*this, node, name, random_.Next(), wall_offset));
  living_.push_back(processes_.back().get());
  Trace("start %s", name);
  return living_.back();
}

void World::Kill(Process* process) {
  Trace("end %s", process->name());
  living_.erase(std::find(living_.begin(), living_.end(), process));
  process->End();
}

Process* World::PickRunnable() {
  size_t count = 0;
  for (Process* process : living_) count += process->runnable();
  if (count == 0) return nullptr;
  size_t pick = random_.Below(count);
  for (Process* process : living_) {
    if (process->runnable() && pick-- == 0) return process;
  }
  return nullptr;
}

bool World::RunUntil(const std::function<bool()>& done, Duration limit) {
  const Duration end = clock_.Now() + limit;
  uint64_t steps_now = 0;
  while (!done()) {
    if (Process* process = PickRunnable()) {
      ++steps_;
      process->RunOne(shuffle_);
      if (++steps_now > kMaxStepsWithoutTime) {
        Fail(absl::StrFormat("%s spins without time passing", process->name()));
        return false;
      }
      continue;
    }
    steps_now = 0;
    if (!clock_.Advance(end)) return false;
  }
  return true;
}

bool World::RunFor(Duration time) {
  RunUntil([] { return false; }, time);
  return failure_.empty();
}

void World::Fail(std::string what) {
  Trace("FAILURE %s", what);
  if (failure_.empty()) failure_ = std::move(what);
}

void World::Note(const std::function<std::string()>& line) {
  if (print_trace_)
    std::printf("%12.6f   %s\n", static_cast<double>(clock_.Now().count()) / 1e9, line().c_str());
}

void World::Record(const std::string& line) {
  hash_ = (hash_ ^ static_cast<uint64_t>(clock_.Now().count())) * 0x100000001b3u;
  for (char c : line) hash_ = (hash_ ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  if (print_trace_) std::printf("%12.6f %s\n", static_cast<double>(clock_.Now().count()) / 1e9, line.c_str());
}

}  // namespace nacre::sim
