#include "compat/cufile/streams.h"

#include <cerrno>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "compat/cufile/log.h"
#include "compat/cufile/transfer.h"

namespace nacre::cufile {
namespace {

struct Late {
  nacre_turn turn{};
  CUfileHandle_t handle = nullptr;
  bool writes = false;
  void* base = nullptr;
  LateArguments arguments;
};

// What one stream is to do and has not done. While it is not empty it has a thread, which keeps it.
class Queue : public std::enable_shared_from_this<Queue> {
 public:
  int Add(const FilePtr& file, Late late, CUstream stream) {
    std::lock_guard in_order(order_);
    AwaitRoom();
    if (const int error = nacre_turn_take(file->client(), stream, late.base, &late.turn); error != 0)
      return error;
    std::lock_guard lock(mutex_);
    undone_.push_back(late);
    if (undone_.size() == 1) std::thread([self = shared_from_this()] { self->Work(); }).detach();
    return 0;
  }

 private:
  // A turn is two commands, and CUDA has room for about 1,024 in a stream that stands still. Whoever enqueues
  // more waits inside the driver, which then takes no work from other threads either: not the copies after
  // which the stream would go on. So callers wait here, where they hold nothing that a transfer needs. The
  // number is small enough for four streams that share a hardware queue, and for what the program enqueues.
  static constexpr size_t kMost = 100;

  void AwaitRoom() {
    std::unique_lock lock(mutex_);
    fewer_.wait(lock, [this] { return undone_.size() < kMost; });
  }

  void Work() {
    for (;;) {
      Late late;
      {
        std::lock_guard lock(mutex_);
        late = undone_.front();
      }
      Do(late);
      std::lock_guard lock(mutex_);
      undone_.pop_front();
      fewer_.notify_one();
      if (undone_.empty()) return;
    }
  }

  static void Do(const Late& late) {
    const LateArguments& its = late.arguments;
    if (const int error = nacre_turn_wait(late.turn, -1); error != 0) {
      *its.done = -error;
    } else {
      const Request request{late.writes, late.base, *its.memory_offset, *its.size, *its.offset};
      const ssize_t done = Transfer(late.handle, request);
      *its.done = done < 0 ? -errno : done;
    }
    (void)nacre_turn_end(late.turn);
  }

  // Held while a turn is taken and noted, so that turns stand here as in the stream. The thread needs the
  // other one alone, which is never held across a call of the driver.
  std::mutex order_;
  std::mutex mutex_;
  std::condition_variable fewer_;
  std::deque<Late> undone_;  // the first one is being done
};

// That of the stream.
std::shared_ptr<Queue> QueueOf(CUstream stream) {
  static std::mutex& mutex = *new std::mutex;
  static auto& queues = *new std::map<CUstream, std::weak_ptr<Queue>>;
  std::lock_guard lock(mutex);
  if (std::shared_ptr<Queue> queue = queues[stream].lock()) return queue;
  std::erase_if(queues, [](const auto& other) { return other.second.expired(); });
  auto queue = std::make_shared<Queue>();
  queues[stream] = queue;
  return queue;
}

}  // namespace

CUfileError_t TransferOnStream(const FilePtr& file, CUfileHandle_t handle, bool writes, void* base,
                               LateArguments arguments, CUstream stream) {
  Late late;
  late.handle = handle;
  late.writes = writes;
  late.base = base;
  late.arguments = arguments;
  const int error = QueueOf(stream)->Add(file, late, stream);
  if (error == 0) return Answer(kSuccess);
  Log("a transfer in stream order: %s", nacre_error_message());
  return Answer(error == ENOTSUP ? kAsyncNotSupported : kInvalidValue);
}

}  // namespace nacre::cufile
