#include "tests/sim/world.h"

#include <gtest/gtest.h>

namespace nacre::sim {
namespace {

TEST(World, TimePassesOnlyWhenNobodyRuns) {
  World world(1);
  Process* process = world.Start(0, "p");
  std::vector<std::string> order;
  Spawn(process->executor(), [](World& world, std::vector<std::string>& order) -> Task<void> {
    co_await world.clock().Sleep(3s);
    order.push_back("late");
  }(world, order));
  Spawn(process->executor(), [](World& world, std::vector<std::string>& order) -> Task<void> {
    co_await world.clock().Sleep(1h);
    order.push_back("never");
  }(world, order));
  EXPECT_TRUE(world.RunUntil([&] { return !order.empty(); }, 10s));
  EXPECT_EQ(order, std::vector<std::string>{"late"});
  EXPECT_EQ(world.clock().Now(), Duration(3s));
  EXPECT_FALSE(world.RunUntil([&] { return order.size() == 2; }, 10s));
  EXPECT_EQ(world.clock().Now(), Duration(13s));
}

TEST(World, CancelledTimerDoesNotRun) {
  World world(1);
  Process* process = world.Start(0, "p");
  bool ran = false;
  auto timer = world.clock().After(process->executor(), 1s, [&] { ran = true; });
  timer.reset();
  world.RunFor(2s);
  EXPECT_FALSE(ran);
}

// Dropping must run destructors of everything that waits, whatever it waits for, before the objects go.
TEST(World, KillDestroysWaitingCoroutinesBeforeTheirObjects) {
  struct Server {
    explicit Server(std::vector<std::string>& log) : log(log) {}
    ~Server() { log.push_back("server"); }
    std::vector<std::string>& log;
    AsyncMutex mutex;
  };
  struct Local {
    ~Local() { server.log.push_back("coroutine"); }
    Server& server;
  };
  auto run = [](World& world, Server& server) -> Task<void> {
    Local local{server};
    auto guard = co_await server.mutex.Lock();
    OneShot<Unit> never;  // waited for by nobody else: a cycle
    if (world.random().OneIn(2)) co_await never.Wait();
    co_await world.clock().Sleep(1h);
  };
  std::vector<std::string> log;
  World world(1);
  Process* process = world.Start(0, "p");
  auto server = std::make_shared<Server>(log);
  for (int i = 0; i < 3; ++i) Spawn(process->executor(), run(world, *server));
  process->Own(std::move(server));
  world.RunFor(1s);
  EXPECT_TRUE(log.empty());
  world.Kill(process);
  EXPECT_EQ(log, (std::vector<std::string>{"coroutine", "coroutine", "coroutine", "server"}));
  world.RunFor(2h);
}

// They may use what lies in its frame: whichever began to wait first, before the tasks or after them.
TEST(World, KillDestroysTasksBeforeWhoeverWaitsForThem) {
  struct Log {
    std::vector<std::string>* events;
    std::string name;
    ~Log() { events->push_back(name); }
  };
  std::vector<std::string> events;
  World world(1);
  {
    auto process = world.Start(0, "p");
    Clock* clock = &process->clock();
    Spawn(process->executor(), [](std::vector<std::string>* events, Clock* clock) -> Task<void> {
      Log log{events, "parent"};
      auto child = [](std::vector<std::string>* events, Clock* clock, bool later) -> Task<bool> {
        Log log{events, "child"};
        if (later) co_await clock->Sleep(1s);
        co_await OneShot<Unit>().Wait();
        co_return true;
      };
      std::vector<Task<bool>> tasks;
      tasks.push_back(child(events, clock, false));
      tasks.push_back(child(events, clock, true));
      co_await WhenAll(std::move(tasks));
    }(&events, clock));
    world.RunFor(10s);
    world.Kill(process);
  }
  EXPECT_EQ(events, (std::vector<std::string>{"child", "child", "parent"}));
}

TEST(World, SameSeedSameTrace) {
  auto run = [](uint64_t seed) {
    World world(seed);
    for (int node = 0; node < 3; ++node) {
      Process* process = world.Start(node, absl::StrFormat("p%d", node));
      for (int i = 0; i < 5; ++i) {
        Spawn(process->executor(), [](World& world, Process* process, int i) -> Task<void> {
          co_await world.clock().Sleep(std::chrono::milliseconds(process->random().Below(3)));
          world.Trace("%s %d", process->name(), i);
        }(world, process, i));
      }
    }
    world.RunFor(1s);
    return world.trace_hash();
  };
  EXPECT_EQ(run(5), run(5));
  EXPECT_NE(run(5), run(6));
}

}  // namespace
}  // namespace nacre::sim
