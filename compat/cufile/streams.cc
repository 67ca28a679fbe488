#include "compat/cufile/streams.h"

#include <cerrno>
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

class Streams {
 public:
  static Streams& Get() {
    static Streams& streams = *new Streams;
    return streams;
  }

  // The turn is taken with the mutex held, so that those of a stream stand here in its order.
  int Add(const FilePtr& file, Late late, CUstream stream) {
    std::lock_guard lock(mutex_);
    if (const int error = nacre_turn_take(file->client(), stream, late.base, &late.turn); error != 0)
      return error;
    const bool fresh = !queues_.contains(stream);
    queues_[stream].push_back(late);
    if (fresh) std::thread([this, stream] { Work(stream); }).detach();
    return 0;
  }

 private:
  void Work(CUstream stream) {
    for (;;) {
      Late late;
      {
        std::lock_guard lock(mutex_);
        std::deque<Late>& queue = queues_.at(stream);
        if (queue.empty()) {
          queues_.erase(stream);
          return;
        }
        late = queue.front();
        queue.pop_front();
      }
      Do(late);
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

  std::mutex mutex_;
  std::map<CUstream, std::deque<Late>> queues_;  // each has a thread
};

}  // namespace

CUfileError_t TransferOnStream(const FilePtr& file, CUfileHandle_t handle, bool writes, void* base,
                               LateArguments arguments, CUstream stream) {
  Late late;
  late.handle = handle;
  late.writes = writes;
  late.base = base;
  late.arguments = arguments;
  const int error = Streams::Get().Add(file, late, stream);
  if (error == 0) return Answer(kSuccess);
  Log("a transfer in stream order: %s", nacre_error_message());
  return Answer(error == ENOTSUP ? kAsyncNotSupported : kInvalidValue);
}

}  // namespace nacre::cufile
