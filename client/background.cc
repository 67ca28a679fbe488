#include "client/background.h"

namespace nacre::client {

OneShot<Unit> Background::Start(Task<void> task) {
  OneShot<Unit> end;
  {
    std::lock_guard lock(mutex_);
    ++under_way_;
  }
  Spawn(executor_, [](Background* background, Task<void> work, OneShot<Unit> ended) -> Task<void> {
    co_await std::move(work);
    ended.Set({});
    background->Ended();
  }(this, std::move(task), end));
  return end;
}

void Background::Ended() {
  std::vector<OneShot<Unit>> waiters;
  {
    std::lock_guard lock(mutex_);
    if (--under_way_ == 0) waiters.swap(draining_);
  }
  for (OneShot<Unit>& waiter : waiters) waiter.Set({});
}

Task<void> Background::Drain() {
  OneShot<Unit> done;
  {
    std::lock_guard lock(mutex_);
    if (under_way_ == 0) co_return;
    draining_.push_back(done);
  }
  co_await done.Wait();
}

}  // namespace nacre::client
