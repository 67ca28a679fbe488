#include "tests/gpu/fake_cuda/streams.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "tests/gpu/fake_cuda/knobs.h"

CUctx_st::CUctx_st() = default;
CUctx_st::~CUctx_st() = default;

CUstream_st::CUstream_st(CUctx_st* context, bool blocking, int priority)
    : context(context), blocking_(blocking), queue_(context->queues.For(priority)) {
  ++nacre::fake_cuda::GetCounters().streams;
}

CUstream_st::~CUstream_st() {
  if (capturing_) EndCapture();
  Synchronize();
  --nacre::fake_cuda::GetCounters().streams;
}

void CUstream_st::BeginCapture() {
  capturing_ = true;
  if (blocking_) ++context->blocking_captures;
}

void CUstream_st::EndCapture() {
  capturing_ = false;
  if (blocking_) --context->blocking_captures;
}

void CUstream_st::Enqueue(std::function<void()> work) {
  if (!capturing_) queue_->Enqueue(std::move(work));
}

void CUstream_st::Synchronize() { queue_->Synchronize(); }

namespace nacre::fake_cuda {

HardwareQueue::HardwareQueue() : thread_([this] { Loop(); }) {}

HardwareQueue::~HardwareQueue() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void HardwareQueue::Enqueue(std::function<void()> work) {
  {
    std::lock_guard lock(mutex_);
    work_.push_back(std::move(work));
  }
  wake_.notify_one();
}

void HardwareQueue::Synchronize() {
  std::mutex mutex;
  std::condition_variable wake;
  bool done = false;
  Enqueue([&] {
    std::lock_guard lock(mutex);
    done = true;
    wake.notify_one();
  });
  std::unique_lock lock(mutex);
  wake.wait(lock, [&] { return done; });
}

void HardwareQueue::Loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return !work_.empty() || stopping_; });
    if (work_.empty()) return;
    std::function<void()> work = std::move(work_.front());
    work_.pop_front();
    lock.unlock();
    if (long delay = GetKnobs().delay; delay > 0) usleep(delay);
    work();
    work = nullptr;
    lock.lock();
  }
}

std::shared_ptr<HardwareQueue> HardwareQueues::For(int priority) {
  const long count = GetKnobs().queues;
  std::lock_guard lock(mutex_);
  std::weak_ptr<HardwareQueue> none;
  OfPriority& its = priorities_[priority];
  if (count > 0) its.queues.resize(std::max<size_t>(its.queues.size(), count));
  std::weak_ptr<HardwareQueue>& place = count > 0 ? its.queues[its.next++ % count] : none;
  std::shared_ptr<HardwareQueue> queue = place.lock();
  if (queue != nullptr) return queue;
  place = queue = std::make_shared<HardwareQueue>();
  std::erase_if(all_, [](const auto& one) { return one.expired(); });
  all_.push_back(queue);
  return queue;
}

void HardwareQueues::Synchronize() {
  std::vector<std::weak_ptr<HardwareQueue>> all;
  {
    std::lock_guard lock(mutex_);
    all = all_;
  }
  for (const auto& weak : all) {
    if (std::shared_ptr<HardwareQueue> queue = weak.lock()) queue->Synchronize();
  }
}

}  // namespace nacre::fake_cuda
