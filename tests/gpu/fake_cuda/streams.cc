#include "tests/gpu/fake_cuda/streams.h"

#include <unistd.h>

#include <utility>

#include "tests/gpu/fake_cuda/knobs.h"

CUctx_st::CUctx_st() = default;
CUctx_st::~CUctx_st() = default;

CUstream_st::CUstream_st(CUctx_st* context, bool blocking)
    : context(context), blocking_(blocking), thread_([this] { Loop(); }) {
  ++nacre::fake_cuda::GetCounters().streams;
}

CUstream_st::~CUstream_st() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
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
  if (capturing_) return;
  {
    std::lock_guard lock(mutex_);
    queue_.push_back(std::move(work));
  }
  wake_.notify_one();
}

void CUstream_st::Synchronize() {
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

void CUstream_st::Loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return !queue_.empty() || stopping_; });
    if (queue_.empty()) return;
    std::function<void()> work = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    if (long delay = nacre::fake_cuda::GetKnobs().delay; delay > 0) usleep(delay);
    work();
    work = nullptr;
    lock.lock();
  }
}
