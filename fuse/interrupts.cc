#include "fuse/interrupts.h"

#include <cerrno>

#include "common/status.h"
#include "fuse/caller_state.h"

namespace nacre::fuse {
namespace {

constexpr Duration kLookEvery = 200ms;
constexpr int kRestAfter = 25;  // rounds with nothing to look at: until then nobody has to wake the thread
// A program that handles the signal is let go when the server is clearly away: it may want to write, or its
// handler may be there to end it (a shell, an interpreter). The same for one that cannot be seen.
constexpr Duration kAskedAfter = 2s;
constexpr Duration kUnseenAfter = 5s;
// A close at the end of a process gives a server that works the time to take back its locks.
constexpr Duration kExitAfter = 1s;

bool LetGo(CallerState state, Patience patience, bool signalled, Duration waited) {
  switch (state) {
    case CallerState::kGoesOn:
      return false;
    case CallerState::kAskedTo:
      return signalled && waited >= kAskedAfter;
    case CallerState::kKilled:
      return patience == Patience::kUntilSignal || waited >= kExitAfter;
    case CallerState::kExiting:
      return waited >= kExitAfter;
    case CallerState::kUnseen:
      return waited >= kUnseenAfter && (signalled || patience == Patience::kUntilExit);
  }
  return false;
}

}  // namespace

fuse_req_t Answer::Take() {
  std::lock_guard lock(mutex_);
  if (watched_by_ != nullptr) std::exchange(watched_by_, nullptr)->Forget(request_);
  return std::exchange(request_, nullptr);
}

void Interrupts::Watch(const std::shared_ptr<Answer>& answer) {
  if (answer->patience == Patience::kForEver) return;
  bool cancel = false;
  {
    std::lock_guard unanswered(answer->mutex_);  // libfuse frees the request with its answer
    if (answer->request_ == nullptr) return;
    {
      std::lock_guard lock(mutex_);
      if (stopped_) return;
      cancel = all_cancelled_;
      Watched& watched = watched_[answer->request_];
      watched.answer = answer;
      answer->watched_by_ = this;
      if (answer->patience == Patience::kUntilExit) LookAfter(watched);
    }
    fuse_req_interrupt_func(answer->request_, OnInterrupt, this);  // calls it at once if a signal has come
  }
  if (cancel) answer->Cancel(ErrnoError(EINTR, "the mount is gone"));
}

void Interrupts::Forget(fuse_req_t request) {
  std::shared_ptr<Answer> answer;  // dropped without the lock
  std::lock_guard lock(mutex_);
  auto it = watched_.find(request);
  if (it == watched_.end()) return;
  if (it->second.looked_at) --looked_at_;
  answer = std::move(it->second.answer);
  watched_.erase(it);
}

// With mutex_ held.
void Interrupts::LookAfter(Watched& watched) {
  if (!std::exchange(watched.looked_at, true)) {
    ++looked_at_;
    watched.since = clock_.Now();
  }
  if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
  if (resting_ || news_) wake_.notify_one();
}

// libfuse holds a mutex of the request's, so it is not answered from here.
void Interrupts::OnInterrupt(fuse_req_t request, void* self) {
  static_cast<Interrupts*>(self)->Interrupted(request);
}

void Interrupts::Interrupted(fuse_req_t request) {
  std::lock_guard lock(mutex_);
  auto it = watched_.find(request);
  if (it == watched_.end() || stopped_) return;  // it is being answered
  if (!it->second.signalled) it->second.since = clock_.Now();
  it->second.signalled = true;
  news_ = true;
  LookAfter(it->second);
}

void Interrupts::CancelAll() {
  std::vector<std::shared_ptr<Answer>> answers;
  {
    std::lock_guard lock(mutex_);
    all_cancelled_ = true;
    for (auto& [request, watched] : watched_) answers.push_back(watched.answer);
  }
  for (const auto& answer : answers) answer->Cancel(ErrnoError(EINTR, "the mount is gone"));
}

void Interrupts::Stop() {
  {
    std::lock_guard lock(mutex_);
    stopped_ = true;
    watched_.clear();
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void Interrupts::Run() {
  int rounds_without_work = 0;
  std::unique_lock lock(mutex_);
  for (;;) {
    resting_ = rounds_without_work > kRestAfter;
    if (resting_) {
      wake_.wait(lock, [this] { return stopped_ || looked_at_ > 0; });
      resting_ = false;
    } else {
      wake_.wait_for(lock, kLookEvery, [this] { return stopped_ || news_; });
    }
    if (stopped_) return;
    rounds_without_work = looked_at_ == 0 ? rounds_without_work + 1 : 0;
    news_ = false;
    struct Look {
      std::shared_ptr<Answer> answer;
      bool signalled, first;
      Duration waited;
    };
    std::vector<Look> looks;
    const Duration now = clock_.Now();
    for (auto& [request, watched] : watched_) {
      if (!watched.looked_at) continue;
      const bool first = watched.signalled && !std::exchange(watched.told, true);
      looks.push_back({watched.answer, watched.signalled, first, now - watched.since});
    }
    lock.unlock();
    for (const Look& look : looks) {
      if (look.first) look.answer->Signal();
      if (!LetGo(StateOfCaller(look.answer->pid), look.answer->patience, look.signalled, look.waited))
        continue;
      look.answer->Cancel(ErrnoError(EINTR, "the caller has been killed"));
      if (fuse_req_t request = look.answer->Take()) fuse_reply_err(request, EINTR);
    }
    looks.clear();
    lock.lock();
  }
}

}  // namespace nacre::fuse
