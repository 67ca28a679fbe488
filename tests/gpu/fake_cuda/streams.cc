#include "tests/gpu/fake_cuda/streams.h"

#include <unistd.h>

#include <utility>

#include "tests/gpu/fake_cuda/knobs.h"

CUctx_st::CUctx_st() = default;
CUctx_st::~CUctx_st() = default;

CUstream_st::CUstream_st(CUctx_st* context, bool blocking)
    : context(context),
      blocking_(blocking),
      thread_(context->queues.NewThread()),
      queue_(context->queues.NextQueue()) {
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

void CUstream_st::Enqueue(nacre::fake_cuda::Unit unit, std::function<void()> work) {
  if (capturing_) return;
  std::unique_lock enqueuing(context->enqueuing, std::defer_lock);
  if (const long room = nacre::fake_cuda::GetKnobs().room; room > 0) {
    enqueuing.lock();
    thread_->AwaitRoom(room);
  }
  std::lock_guard lock(mutex_);
  if (queue_ != nullptr && unit == nacre::fake_cuda::Unit::kProcessors)
    work = [queue = queue_, place = queue_->Join(), work = std::move(work)] { queue->Do(place, work); };
  thread_->Enqueue(std::move(work));
}

void CUstream_st::Synchronize() { thread_->Synchronize(); }

namespace nacre::fake_cuda {

WorkThread::WorkThread() : thread_([this] { Loop(); }) {}

WorkThread::~WorkThread() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void WorkThread::Enqueue(std::function<void()> work) {
  {
    std::lock_guard lock(mutex_);
    work_.push_back(std::move(work));
  }
  wake_.notify_one();
}

void WorkThread::AwaitRoom(size_t room) {
  std::unique_lock lock(mutex_);
  begun_.wait(lock, [&] { return work_.size() < room; });
}

void WorkThread::Synchronize() {
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

void WorkThread::Loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return !work_.empty() || stopping_; });
    if (work_.empty()) return;
    std::function<void()> work = std::move(work_.front());
    work_.pop_front();
    begun_.notify_all();
    lock.unlock();
    if (long delay = GetKnobs().delay; delay > 0) usleep(delay);
    work();
    work = nullptr;
    lock.lock();
  }
}

uint64_t HardwareQueue::Join() {
  std::lock_guard lock(mutex_);
  return joined_++;
}

void HardwareQueue::Do(uint64_t place, const std::function<void()>& work) {
  std::unique_lock lock(mutex_);
  wake_.wait(lock, [&] { return done_ == place; });
  lock.unlock();
  work();
  lock.lock();
  ++done_;
  wake_.notify_all();
}

std::shared_ptr<WorkThread> HardwareQueues::NewThread() {
  auto thread = std::make_shared<WorkThread>();
  std::lock_guard lock(mutex_);
  std::erase_if(threads_, [](const auto& one) { return one.expired(); });
  threads_.push_back(thread);
  return thread;
}

std::shared_ptr<HardwareQueue> HardwareQueues::NextQueue() {
  const size_t count = GetKnobs().queues;
  if (count == 0) return nullptr;
  std::lock_guard lock(mutex_);
  while (queues_.size() < count) queues_.push_back(std::make_shared<HardwareQueue>());
  return queues_[next_++ % count];
}

void HardwareQueues::Synchronize() {
  std::vector<std::weak_ptr<WorkThread>> threads;
  {
    std::lock_guard lock(mutex_);
    threads = threads_;
  }
  for (const auto& weak : threads) {
    if (std::shared_ptr<WorkThread> thread = weak.lock()) thread->Synchronize();
  }
}

}  // namespace nacre::fake_cuda
