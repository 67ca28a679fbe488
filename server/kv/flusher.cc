#include "server/kv/flusher.h"

namespace nacre {

Flusher::Flusher(std::function<Status()> flush) : flush_(std::move(flush)) {}

void Flusher::Add(OneShot<Status> done) {
  bool first = false;
  {
    std::lock_guard lock(mutex_);
    first = waiters_.empty();
    waiters_.push_back(std::move(done));
  }
  if (first) thread_.Post([this] { Serve(); });
}

void Flusher::Serve() {
  std::vector<OneShot<Status>> served;
  {
    std::lock_guard lock(mutex_);
    served.swap(waiters_);
  }
  Status status = flush_();
  for (const OneShot<Status>& done : served) done.Set(status);
}

}  // namespace nacre
