#include "server/kv/commit_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <functional>
#include <map>
#include <set>
#include <thread>

#include "common/runtime.h"

namespace nacre {
namespace {

KvBatch Batch(std::string key, size_t size = 1) {
  KvBatch batch;
  batch.Put(std::move(key), std::string(size, 'x'));
  return batch;
}

using Groups = std::vector<std::vector<std::string>>;

// Writes into `groups`. The first write waits until the test has let others queue up.
class CommitQueueTest : public testing::Test {
 protected:
  Task<void> Write(const CommitQueue::Group& group) {
    EXPECT_FALSE(writing_.exchange(true)) << "two write at the same time";
    std::vector<std::string> keys;
    for (CommitQueue::Commitment* one : group) {
      keys.push_back(one->batch.ops()[0].key);
      one->status = refused_.contains(keys.back()) ? ErrnoError(ENOSPC, keys.back()) : OkStatus();
    }
    groups_.push_back(std::move(keys));
    if (groups_.size() == 1 && during_first_) during_first_();
    writing_ = false;
    co_return;
  }
  void Start(std::string key, size_t size = 1) {
    Spawn(context_.get_executor(), queue_.Commit(Batch(key, size)),
          [this, key](Status status) { results_[key] = std::move(status); });
  }

  asio::io_context context_;
  CommitQueue queue_{[this](const CommitQueue::Group& group) { return Write(group); }};
  std::function<void()> during_first_;
  std::set<std::string> refused_;
  std::atomic<bool> writing_{false};
  Groups groups_;
  std::map<std::string, Status> results_;
};

TEST_F(CommitQueueTest, OneThatIsAloneWritesOnItsOwnThread) {
  std::thread::id writer;
  during_first_ = [&] { writer = std::this_thread::get_id(); };
  Start("a");
  context_.run();
  EXPECT_TRUE(results_.at("a").ok());
  EXPECT_EQ(writer, std::this_thread::get_id());
  EXPECT_EQ(groups_, (Groups{{"a"}}));
}

TEST_F(CommitQueueTest, ThoseThatMeetAreOneWriteInTheOrderOfTheirCalls) {
  during_first_ = [this] {
    for (const char* key : {"b", "c", "d"}) Start(key);
    context_.poll();  // they come while "a" is being written
    EXPECT_TRUE(results_.empty());
  };
  Start("a");
  context_.run();
  EXPECT_EQ(groups_, (Groups{{"a"}, {"b", "c", "d"}}));
  EXPECT_EQ(results_.size(), 4u);
}

// A task that waits knows its batch's place before anything of it is written.
TEST_F(CommitQueueTest, APlaceIsSettledBeforeTheWrite) {
  std::map<std::string, OneShot<Unit>> places;
  auto start = [&](const std::string& key) {
    KvBatch batch = Batch(key);
    batch.TellPlace(places[key]);
    Spawn(context_.get_executor(), queue_.Commit(std::move(batch)),
          [this, key](Status status) { results_[key] = std::move(status); });
  };
  during_first_ = [&] {
    for (const char* key : {"b", "c"}) start(key);
    context_.poll();
    for (const auto& [key, place] : places) EXPECT_TRUE(place.IsSet()) << key;
    EXPECT_TRUE(results_.empty());
  };
  start("a");
  context_.run();
  EXPECT_EQ(groups_, (Groups{{"a"}, {"b", "c"}}));
}

TEST_F(CommitQueueTest, EachHasItsOwnStatus) {
  refused_ = {"c"};
  during_first_ = [this] {
    for (const char* key : {"b", "c", "d"}) Start(key);
    context_.poll();
  };
  Start("a");
  context_.run();
  for (const auto& [key, status] : results_) EXPECT_EQ(ToErrno(status), key == "c" ? ENOSPC : 0) << key;
}

TEST_F(CommitQueueTest, AGroupIsBounded) {
  during_first_ = [this] {
    for (const char* key : {"b", "c", "d"}) Start(key, 400 << 10);
    Start("e", 2 << 20);
    Start("f");
    context_.poll();
  };
  Start("a");
  context_.run();
  EXPECT_EQ(groups_, (Groups{{"a"}, {"b", "c"}, {"d"}, {"e"}, {"f"}}));
}

Task<void> Nothing() { co_return; }

// Each thread's commits are in the order in which it made them, and none is lost.
TEST(CommitQueue, ManyThreads) {
  constexpr int kTasks = 8, kCommits = 500;
  std::atomic<bool> writing{false};
  std::vector<std::string> written;
  CommitQueue queue([&](const CommitQueue::Group& group) {
    EXPECT_FALSE(writing.exchange(true));
    for (CommitQueue::Commitment* one : group) written.push_back(one->batch.ops()[0].key);
    writing = false;
    return Nothing();
  });
  Runtime runtime(4);
  std::vector<Task<int>> tasks;
  for (int task = 0; task < kTasks; ++task) {
    tasks.push_back([](CommitQueue* queue, int task) -> Task<int> {
      for (int i = 0; i < kCommits; ++i) {
        KvBatch batch = Batch(absl::StrCat(task, " ", i));
        Status status = co_await queue->Commit(std::move(batch));
        EXPECT_TRUE(status.ok()) << status;
      }
      co_return 0;
    }(&queue, task));
  }
  runtime.Run(WhenAll(std::move(tasks)));
  std::map<std::string, int> next;
  for (const std::string& key : written) {
    const size_t space = key.find(' ');
    EXPECT_EQ(std::stoi(key.substr(space)), next[key.substr(0, space)]++) << key;
  }
  EXPECT_EQ(written.size(), size_t{kTasks * kCommits});
}

}  // namespace
}  // namespace nacre
