#include "server/kv/flusher.h"

namespace nacre {

Flusher::Flusher(std::function<Status()> flush) : flush_(std::move(flush)), thread_([this] { Run(); }) {}

Flusher::~Flusher() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void Flusher::Add(OneShot<Status> done) {
  {
    std::lock_guard lock(mutex_);
    waiters_.push_back(std::move(done));
  }
  wake_.notify_one();
}

void Flusher::Run() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stopping_ || !waiters_.empty(); });
    if (waiters_.empty()) return;
    std::vector<OneShot<Status>> served = std::move(waiters_);
    waiters_.clear();
    lock.unlock();
    Status status = flush_();
    for (const OneShot<Status>& done : served) done.Set(status);
    lock.lock();
  }
}

}  // namespace nacre
