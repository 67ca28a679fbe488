// The simulated world: virtual time, processes and the seeded scheduler that decides who runs next.
//
// Everything happens on one thread. A process is one life of a node: its executor, its suspended coroutines
// and the objects that it owns. Kill ends it at any moment between two handlers, as SIGKILL would: nothing of
// it runs again. Time passes only when nobody can run. All choices come from the seed; the hash of the trace
// shows that a run was the same. Not thread-safe.
#pragma once

#include <absl/strings/str_format.h>

#include <boost/asio/execution.hpp>
#include <boost/asio/execution_context.hpp>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/random.h"
#include "common/task.h"

namespace nacre::sim {

class World;
class Process;

// The executor behind any_io_executor in the simulation: posts to the process's queue.
class SimExecutor {
 public:
  explicit SimExecutor(Process* process) : process_(process) {}

  asio::execution_context& query(asio::execution::context_t) const noexcept;
  static constexpr asio::execution::blocking_t query(asio::execution::blocking_t) noexcept {
    return asio::execution::blocking.never;
  }
  template <typename F>
  void execute(F&& function) const {
    Post(absl::AnyInvocable<void()>(std::forward<F>(function)));
  }
  bool operator==(const SimExecutor&) const noexcept = default;

 private:
  void Post(absl::AnyInvocable<void()> function) const;
  Process* process_;
};

class SimClock : public Clock {
 public:
  Duration Now() override { return now_; }
  WallTime Wall() override;
  std::unique_ptr<TimerHandle> After(const Executor& executor, Duration delay,
                                     absl::AnyInvocable<void()> function) override;

  // Without a handle: cannot be cancelled. The network is made of these.
  void At(Duration delay, absl::AnyInvocable<void()> function);

  // Moves to the next timer, at most to `limit`, and runs or posts what is due. False: nothing is due until
  // then.
  bool Advance(Duration limit);

 private:
  using Key = std::pair<Duration, uint64_t>;
  class Handle;

  Duration now_{0};
  uint64_t next_ = 0;
  std::map<Key, absl::AnyInvocable<void()>> timers_;
};

// The clock of one process's machine: as fast as the world's, and set differently.
class ProcessClock : public Clock {
 public:
  ProcessClock(SimClock& world, Duration now_offset, int64_t wall_offset)
      : world_(world), now_offset_(now_offset), wall_offset_(wall_offset) {}

  Duration Now() override { return world_.Now() + now_offset_; }
  WallTime Wall() override {
    WallTime wall = world_.Wall();
    wall.seconds += wall_offset_;
    return wall;
  }
  std::unique_ptr<TimerHandle> After(const Executor& executor, Duration delay,
                                     absl::AnyInvocable<void()> function) override {
    return world_.After(executor, delay, std::move(function));
  }

 private:
  SimClock& world_;
  const Duration now_offset_;
  const int64_t wall_offset_;  // seconds
};

class Process : public SuspensionTracker {
 public:
  // wall_offset: by how many seconds its machine's wall clock differs from the world's.
  Process(World& world, int node, std::string name, uint64_t seed, int64_t wall_offset);
  ~Process() override;

  Executor executor() { return SimExecutor(this); }
  Random& random() { return random_; }
  World& world() { return world_; }
  const std::string& name() const { return name_; }
  int node() const { return node_; }
  bool alive() const { return alive_; }
  bool runnable() const { return !frozen_ && !queue_.empty(); }
  // Since when it runs is arbitrary by its own steady clock; its wall clock differs by wall_offset.
  Clock& clock() { return clock_; }
  // Frozen: nothing of it runs, and everything that comes for it waits, as with SIGSTOP.
  void Freeze(bool frozen) { frozen_ = frozen; }

  // Destroyed at the end of the process, the last one first, after everything that was running is gone.
  void Own(std::shared_ptr<void> object) { owned_.push_back(std::move(object)); }
  // Called at the very end, whatever ends it.
  void AtDeath(absl::AnyInvocable<void()> function) { at_death_.push_back(std::move(function)); }

  absl::AnyInvocable<void()> Track(absl::AnyInvocable<void()> resume, std::weak_ptr<void> children) override;

 private:
  friend class World;
  friend class SimExecutor;
  struct Waiter;
  struct Context : asio::execution_context {
    using asio::execution_context::shutdown;  // destroys what strands hold
  };

  void Post(absl::AnyInvocable<void()> function);
  void RunOne(bool shuffle);
  void End();
  void DropPending();

  World& world_;
  const int node_;
  const std::string name_;
  bool alive_ = true;
  bool frozen_ = false;
  SeededRandom random_;
  ProcessClock clock_;
  Context context_;
  std::deque<absl::AnyInvocable<void()>> queue_;
  std::list<std::shared_ptr<Waiter>> waiters_;
  std::vector<std::shared_ptr<void>> owned_;
  std::vector<absl::AnyInvocable<void()>> at_death_;
};

class World {
 public:
  explicit World(uint64_t seed, bool print_trace = false);
  ~World();

  uint64_t seed() const { return seed_; }
  SimClock& clock() { return clock_; }
  Random& random() { return random_; }

  // node: the host, which stays; the process is one life of it.
  Process* Start(int node, const std::string& name, int64_t wall_offset = 0);
  void Kill(Process* process);
  void KillAll();

  // Runs until `done` says so. False: `limit` of virtual time passed before, or somebody spins without time
  // passing.
  bool RunUntil(const std::function<bool()>& done, Duration limit);
  bool RunFor(Duration time);

  // One line of what happened. Part of the trace's hash.
  template <typename... Args>
  void Trace(const absl::FormatSpec<Args...>& format, const Args&... args) {
    Record(absl::StrFormat(format, args...));
  }
  // Detail for people, not part of the hash; `line` is asked only if somebody looks.
  void Note(const std::function<std::string()>& line);
  uint64_t trace_hash() const { return hash_; }
  uint64_t steps() const { return steps_; }
  // Whether anything was recorded that must not be (see Fail).
  const std::string& failure() const { return failure_; }
  void Fail(std::string what);

 private:
  void Record(const std::string& line);
  Process* PickRunnable();

  const uint64_t seed_;
  const bool print_trace_;
  SeededRandom random_;
  SimClock clock_;
  bool shuffle_;
  uint64_t hash_ = 0xcbf29ce484222325u;
  uint64_t steps_ = 0;
  std::string failure_;
  std::vector<std::unique_ptr<Process>> processes_;  // the dead ones too: executors may still name them
  std::vector<Process*> living_;
};

}  // namespace nacre::sim
