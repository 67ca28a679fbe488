#include "server/object/disk_engine.h"

#include <fcntl.h>
#include <liburing.h>
#include <limits.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <thread>

namespace nacre {
namespace {

constexpr unsigned kRingEntries = 1024;
constexpr int kThreads = 8;

const char* Name(DiskOperation::Kind kind) {
  switch (kind) {
    case DiskOperation::Kind::kRead:
      return "reading";
    case DiskOperation::Kind::kWrite:
      return "writing";
    case DiskOperation::Kind::kSync:
      return "flushing";
    case DiskOperation::Kind::kAllocate:
      return "allocating";
  }
  return "?";
}

unsigned BufferCount(const DiskOperation& operation) {
  return static_cast<unsigned>(std::min<size_t>(operation.buffers.size() - operation.next_buffer, IOV_MAX));
}

}  // namespace

bool DiskOperation::Advance(int64_t result) {
  if (result == -EINTR || result == -EAGAIN) return false;
  if (result < 0) {
    auto error = static_cast<int>(-result);
    done.Set(ErrnoError(error, absl::StrCat(Name(kind), " at byte ", offset, ": ", strerror(error))));
    return true;
  }
  if (kind == Kind::kSync || kind == Kind::kAllocate) {
    done.Set(OkStatus());
    return true;
  }
  if (result == 0) {
    done.Set(
        ErrnoError(EIO, absl::StrCat(Name(kind), " at byte ", offset, ": nothing there; was the file cut?")));
    return true;
  }
  offset += static_cast<uint64_t>(result);
  auto moved = static_cast<size_t>(result);
  while (next_buffer < buffers.size() && moved >= buffers[next_buffer].iov_len)
    moved -= buffers[next_buffer++].iov_len;
  if (next_buffer == buffers.size()) {
    done.Set(OkStatus());
    return true;
  }
  iovec& cut = buffers[next_buffer];
  cut.iov_base = static_cast<char*>(cut.iov_base) + moved;
  cut.iov_len -= moved;
  return false;
}

namespace {

// Submitters enter the ring under a mutex; one thread at a time reaps.
class Ring {
 public:
  Ring() = default;
  ~Ring() {
    if (ring_.ring_fd >= 0) io_uring_queue_exit(&ring_);
  }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  Status Open() {
    io_uring_params params{};
    params.flags = IORING_SETUP_CQSIZE;
    params.cq_entries = 4 * kRingEntries;
    int error = io_uring_queue_init_params(kRingEntries, &ring_, &params);
    if (error == 0) return OkStatus();
    ring_.ring_fd = -1;
    return ErrnoError(-error, absl::StrCat("io_uring_setup: ", strerror(-error)));
  }

  int fd() const { return ring_.ring_fd; }

  // nullptr: Reap returns false when it comes by.
  void Enter(DiskOperation* operation) {
    std::lock_guard lock(mutex_);
    io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
    while (sqe == nullptr) {  // only if an earlier submission was refused for want of resources
      io_uring_submit(&ring_);
      sqe = io_uring_get_sqe(&ring_);
    }
    Prepare(sqe, operation);
    if (operation != nullptr) operation->handed_over.store(true, std::memory_order_release);
    io_uring_sqe_set_data(sqe, operation);
    int submitted;
    do {
      submitted = io_uring_submit(&ring_);
    } while (submitted == -EINTR || submitted == -EAGAIN || submitted == -EBUSY);
  }

  void Wait() {
    io_uring_cqe* cqe = nullptr;
    while (io_uring_wait_cqe(&ring_, &cqe) < 0) {
    }
  }

  // All that has completed.
  bool Reap() {
    io_uring_cqe* cqe = nullptr;
    while (io_uring_peek_cqe(&ring_, &cqe) == 0) {
      auto* operation = static_cast<DiskOperation*>(io_uring_cqe_get_data(cqe));
      int result = cqe->res;
      io_uring_cqe_seen(&ring_, cqe);
      if (operation == nullptr) return false;
      (void)operation->handed_over.load(std::memory_order_acquire);
      if (operation->Advance(result)) {
        delete operation;
      } else {
        Enter(operation);
      }
    }
    return true;
  }

 private:
  static void Prepare(io_uring_sqe* sqe, const DiskOperation* operation) {
    if (operation == nullptr) return io_uring_prep_nop(sqe);
    const iovec* buffers = operation->buffers.data() + operation->next_buffer;
    switch (operation->kind) {
      case DiskOperation::Kind::kRead:
        return io_uring_prep_readv(sqe, operation->fd, buffers, BufferCount(*operation), operation->offset);
      case DiskOperation::Kind::kWrite:
        return io_uring_prep_writev(sqe, operation->fd, buffers, BufferCount(*operation), operation->offset);
      case DiskOperation::Kind::kSync:
        return io_uring_prep_fsync(sqe, operation->fd, IORING_FSYNC_DATASYNC);
      case DiskOperation::Kind::kAllocate:
        return io_uring_prep_fallocate(sqe, operation->fd, operation->mode,
                                       static_cast<off_t>(operation->offset),
                                       static_cast<off_t>(operation->length));
    }
  }

  io_uring ring_{.ring_fd = -1};
  std::mutex mutex_;
};

class UringEngine : public DiskEngine {
 public:
  Status Init() {
    RETURN_IF_ERROR(ring_.Open());
    reaper_ = std::thread([this] {
      do {
        ring_.Wait();
      } while (ring_.Reap());
    });
    return OkStatus();
  }

  ~UringEngine() override {
    if (!reaper_.joinable()) return;
    ring_.Enter(nullptr);
    reaper_.join();
  }

  void Submit(std::unique_ptr<DiskOperation> operation) override { ring_.Enter(operation.release()); }

 private:
  Ring ring_;
  std::thread reaper_;
};

// The executor's threads, which wait for sockets already, wait for the ring with them.
class UringOnExecutor : public DiskEngine {
 public:
  Status Init(const Executor& executor) {
    state_ = std::make_shared<State>(executor);
    RETURN_IF_ERROR(state_->ring.Open());
    boost::system::error_code error;
    state_->readable.assign(::fcntl(state_->ring.fd(), F_DUPFD_CLOEXEC, 0), error);
    if (error) return ErrnoError(error.value(), absl::StrCat("io_uring with epoll: ", error.message()));
    Wait(state_);
    return OkStatus();
  }

  ~UringOnExecutor() override {
    std::lock_guard lock(state_->mutex);
    boost::system::error_code ignored;
    state_->readable.close(ignored);
  }

  void Submit(std::unique_ptr<DiskOperation> operation) override { state_->ring.Enter(operation.release()); }

 private:
  // Shared with the wait, which the engine's end only cancels.
  struct State {
    explicit State(const Executor& executor) : readable(executor) {}
    Ring ring;
    std::mutex mutex;
    asio::posix::stream_descriptor readable;  // guarded by mutex
  };

  static void Wait(const std::shared_ptr<State>& state) {
    std::lock_guard lock(state->mutex);
    if (!state->readable.is_open()) return;
    state->readable.async_wait(asio::posix::stream_descriptor::wait_read,
                               [state](const boost::system::error_code& error) {
                                 if (error) return;
                                 state->ring.Reap();
                                 Wait(state);
                               });
  }

  std::shared_ptr<State> state_;
};

class ThreadEngine : public DiskEngine {
 public:
  ThreadEngine() {
    for (int i = 0; i < kThreads; ++i) threads_.emplace_back([this] { Work(); });
  }

  ~ThreadEngine() override {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void Submit(std::unique_ptr<DiskOperation> operation) override {
    {
      std::lock_guard lock(mutex_);
      queue_.push_back(std::move(operation));
    }
    wake_.notify_one();
  }

 private:
  void Work() {
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
      if (queue_.empty()) return;
      std::unique_ptr<DiskOperation> operation = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      while (!operation->Advance(Call(*operation))) {
      }
      lock.lock();
    }
  }

  static int64_t Call(const DiskOperation& operation) {
    const iovec* buffers = operation.buffers.data() + operation.next_buffer;
    auto count = static_cast<int>(BufferCount(operation));
    auto offset = static_cast<off_t>(operation.offset);
    int64_t result = 0;
    switch (operation.kind) {
      case DiskOperation::Kind::kRead:
        result = preadv(operation.fd, buffers, count, offset);
        break;
      case DiskOperation::Kind::kWrite:
        result = pwritev(operation.fd, buffers, count, offset);
        break;
      case DiskOperation::Kind::kSync:
        result = fdatasync(operation.fd);
        break;
      case DiskOperation::Kind::kAllocate:
        result = fallocate(operation.fd, operation.mode, offset, static_cast<off_t>(operation.length));
        break;
    }
    return result < 0 ? -errno : result;
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::unique_ptr<DiskOperation>> queue_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

StatusOr<std::unique_ptr<DiskEngine>> MakeUringEngine(Executor executor) {
  if (executor) {
    auto engine = std::make_unique<UringOnExecutor>();
    RETURN_IF_ERROR(engine->Init(executor));
    return std::unique_ptr<DiskEngine>(std::move(engine));
  }
  auto engine = std::make_unique<UringEngine>();
  RETURN_IF_ERROR(engine->Init());
  return std::unique_ptr<DiskEngine>(std::move(engine));
}

std::unique_ptr<DiskEngine> MakeThreadEngine() { return std::make_unique<ThreadEngine>(); }

}  // namespace nacre
