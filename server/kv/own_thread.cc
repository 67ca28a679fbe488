#include "server/kv/own_thread.h"

#include <utility>

namespace nacre {

OwnThread::~OwnThread() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void OwnThread::Post(Call call) {
  {
    std::lock_guard lock(mutex_);
    calls_.push_back(std::move(call));
    if (!thread_.joinable()) thread_ = std::thread([this] { Work(); });
  }
  wake_.notify_one();
}

Task<void> OwnThread::Run(absl::FunctionRef<void()> call) {
  OneShot<Unit> done;
  Post([call, done] {
    call();
    done.Set({});
  });
  co_await done.Wait();
}

void OwnThread::Work() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stopping_ || !calls_.empty(); });
    if (calls_.empty()) return;
    Call next = std::move(calls_.front());
    calls_.pop_front();
    lock.unlock();
    next();
    lock.lock();
  }
}

}  // namespace nacre
