#include "server/object/admission.h"

#include <algorithm>

namespace nacre::ost {

// The pages of an allotment, shared by the call and those who use them.
struct AllotmentState {
  AllotmentState(std::shared_ptr<Admission> admission, Admission::Flow flow, uint64_t needs, uint64_t pages)
      : admission(std::move(admission)), flow(flow), whole(needs <= pages), free(pages), untaken(needs) {}
  AllotmentState(const AllotmentState&) = delete;
  ~AllotmentState() {
    if (free > 0) admission->Return(flow, free);
  }

  struct Waiter {
    uint64_t pages;
    OneShot<Unit> served;
  };

  // Takes back pages that were in use. Those that the call does not need any more go back to the pool at
  // once.
  void Return(uint64_t pages) {
    std::vector<OneShot<Unit>> wake;
    uint64_t surplus = 0;
    {
      std::lock_guard lock(mutex);
      free += pages;
      while (!waiters.empty() && waiters.front().pages <= free) {
        free -= waiters.front().pages;
        wake.push_back(std::move(waiters.front().served));
        waiters.pop_front();
      }
      surplus = TakeSurplus();
    }
    for (const OneShot<Unit>& served : wake) served.Set({});
    if (surplus > 0) admission->Return(flow, surplus);
  }

  uint64_t TakeSurplus() {
    uint64_t needed = untaken;
    for (const Waiter& waiter : waiters) needed += waiter.pages;
    const uint64_t surplus = free - std::min(free, needed);
    free -= surplus;
    return surplus;
  }

  const std::shared_ptr<Admission> admission;
  const Admission::Flow flow;
  const bool whole;
  std::mutex mutex;
  uint64_t free;     // of the allotment: pages that nobody uses now
  uint64_t untaken;  // pages that the call may still ask for
  std::deque<Waiter> waiters;
};

Allotment::Share& Allotment::Share::operator=(Share&& other) noexcept {
  Return();
  state_ = std::move(other.state_);
  pages_ = std::exchange(other.pages_, 0);
  return *this;
}

void Allotment::Share::Return() {
  if (pages_ > 0) state_->Return(pages_);
  pages_ = 0;
  state_.reset();
}

Allotment& Allotment::operator=(Allotment&& other) noexcept {
  Close();
  state_ = std::move(other.state_);
  return *this;
}

void Allotment::Close() {
  if (state_ == nullptr) return;
  {
    std::lock_guard lock(state_->mutex);
    state_->untaken = 0;
  }
  state_->Return(0);
  state_.reset();
}

bool Allotment::whole() const { return state_ == nullptr || state_->whole; }

Task<Allotment::Share> Allotment::Take(uint64_t pages) {
  std::shared_ptr<AllotmentState> state = state_;
  if (pages == 0) co_return Share();
  OneShot<Unit> served;
  bool waits = false;
  {
    std::lock_guard lock(state->mutex);
    state->untaken -= std::min(state->untaken, pages);
    waits = !state->waiters.empty() || state->free < pages;
    if (waits) {
      state->waiters.push_back({pages, served});
    } else {
      state->free -= pages;
    }
  }
  if (waits) co_await served.Wait();
  co_return Share(std::move(state), pages);
}

// A call gets at most an eighth of the pool, so that several work side by side.
Admission::Admission(uint64_t pages) : largest_part_(std::max(kLeastPart, pages / 8)), free_(pages) {}

Task<Allotment> Admission::Admit(SessionId client, uint32_t ost, uint64_t pages) {
  if (pages == 0) co_return Allotment();
  const Flow flow(client, ost);
  OneShot<Allotment> admitted;
  Admitted others;
  {
    std::lock_guard lock(mutex_);
    if (queues_.empty() && IsEligible(flow) && std::min(pages, largest_part_) <= free_)
      co_return Grant(flow, pages, std::min(pages, largest_part_));
    auto [place, fresh] = queue_of_.try_emplace(flow);
    if (fresh) place->second = queues_.insert(queues_.end(), Queue{flow, {}});
    place->second->waiters.push_back({pages, admitted});
    others = Serve();
  }
  Tell(std::move(others));
  co_return co_await admitted.Wait();
}

bool Admission::IsEligible(const Flow& flow) const {
  const auto client = held_by_client_.find(flow.first);
  const auto ost = held_for_ost_.find(flow.second);
  return (client == held_by_client_.end() || client->second < kClientShare * free_) &&
         (ost == held_for_ost_.end() || ost->second < kOstShare * free_);
}

Allotment Admission::Grant(const Flow& flow, uint64_t needs, uint64_t pages) {
  free_ -= pages;
  held_by_client_[flow.first] += pages;
  held_for_ost_[flow.second] += pages;
  return Allotment(std::make_shared<AllotmentState>(shared_from_this(), flow, needs, pages));
}

// Admits those whose turn it is, as long as there are pages. One that does not fit yet is not overtaken; one
// that has its share already is, and keeps its place.
Admission::Admitted Admission::Serve() {
  Admitted admitted;
  for (auto queue = queues_.begin(); queue != queues_.end();) {
    if (!IsEligible(queue->flow)) {
      ++queue;
      continue;
    }
    Waiter& first = queue->waiters.front();
    const uint64_t pages = std::min(first.needs, largest_part_);
    if (pages > free_) break;
    admitted.emplace_back(std::move(first.admitted), Grant(queue->flow, first.needs, pages));
    queue->waiters.pop_front();
    if (queue->waiters.empty()) {
      queue_of_.erase(queue->flow);
      queues_.erase(queue);
    } else {
      queues_.splice(queues_.end(), queues_, queue);
    }
    queue = queues_.begin();
  }
  return admitted;
}

void Admission::Tell(Admitted admitted) {
  for (auto& [waiter, allotment] : admitted) waiter.Set(std::move(allotment));
}

void Admission::Return(const Flow& flow, uint64_t pages) {
  Admitted admitted;
  {
    std::lock_guard lock(mutex_);
    free_ += pages - leaks_;
    if ((held_by_client_[flow.first] -= pages) == 0) held_by_client_.erase(flow.first);
    if ((held_for_ost_[flow.second] -= pages) == 0) held_for_ost_.erase(flow.second);
    admitted = Serve();
  }
  Tell(std::move(admitted));
}

uint64_t Admission::free_pages() const {
  std::lock_guard lock(mutex_);
  return free_;
}

size_t Admission::waiting() const {
  std::lock_guard lock(mutex_);
  size_t count = 0;
  for (const Queue& queue : queues_) count += queue.waiters.size();
  return count;
}

}  // namespace nacre::ost
