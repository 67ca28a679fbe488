#include "fuse/invalidator.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "common/log.h"
#include "fuse/libfuse.h"

namespace nacre::fuse {
namespace {

constexpr std::chrono::seconds kIdle{10};  // then a thread ends

// ENOENT: the kernel does not know it, which is as good. ENOTCONN and ENODEV: unmounted.
void LogRefusal(const char* what, int result) {
  if (result == 0 || result == -ENOENT || result == -ENOTCONN || result == -ENODEV || result == -EBADF)
    return;
  LogWarning("the kernel refused to forget %s: %s", what, std::strerror(-result));
}

}  // namespace

OneShot<Unit> Invalidator::Inode(uint64_t node, uint64_t begin, uint64_t end) {
  begin = std::min<uint64_t>(begin, INT64_MAX);
  const off_t length = end >= INT64_MAX ? 0 : static_cast<off_t>(end - begin);
  const Place place{node, begin};
  OneShot<Unit> done;
  std::unique_lock lock(mutex_);
  if (stopped_) {
    lock.unlock();
    done.Set({});
    return done;
  }
  auto [queue, fresh] = queues_.try_emplace(place);
  queue->second.push_back({length, done});
  if (!fresh) return done;  // behind one that is being sent, or is ready
  ready_.push_back(place);
  changed_.notify_one();
  if (ready_.size() > idle_ && threads_ < kMostThreads) {
    ++threads_;
    std::thread([this] { Run(); }).detach();  // Stop waits for it
  }
  return done;
}

void Invalidator::Attributes(uint64_t node) {
  constexpr off_t kNoPages = -1;
  {
    std::lock_guard lock(mutex_);
    if (stopped_) return;
    ++callers_;
  }
  LogRefusal("attributes", fuse_lowlevel_notify_inval_inode(session_, node, kNoPages, 0));
  std::lock_guard lock(mutex_);
  --callers_;
  if (stopped_) changed_.notify_all();
}

void Invalidator::Stop() {
  std::unique_lock lock(mutex_);
  stopped_ = true;
  changed_.notify_all();
  changed_.wait(lock, [this] { return threads_ == 0 && callers_ == 0; });
  auto left = std::exchange(queues_, {});
  ready_.clear();
  lock.unlock();
  for (auto& [place, queue] : left) {
    for (Message& message : queue) message.done.Set({});
  }
}

void Invalidator::Send(const Place& place, const Message& message) const {
  const auto [node, begin] = place;
  LogRefusal("an inode",
             fuse_lowlevel_notify_inval_inode(session_, node, static_cast<off_t>(begin), message.length));
  message.done.Set({});
}

void Invalidator::Run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    ++idle_;
    const bool work = changed_.wait_for(lock, kIdle, [this] { return stopped_ || !ready_.empty(); });
    --idle_;
    if (stopped_ || !work) break;
    const Place place = ready_.front();
    ready_.pop_front();
    const Message message = std::move(queues_.at(place).front());
    queues_.at(place).pop_front();
    lock.unlock();
    Send(place, message);
    lock.lock();
    if (queues_.at(place).empty()) {
      queues_.erase(place);
    } else {
      ready_.push_back(place);
    }
  }
  --threads_;
  changed_.notify_all();
}

}  // namespace nacre::fuse
