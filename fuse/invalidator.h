// Tells the kernel to forget. Such a message may block, for a page that is being read from a server that is
// away. So it is never sent by a thread that requests depend on, and what blocks one place in a file holds up
// no other: there are as many threads as messages that block, up to kMostThreads. Thread-safe.
#pragma once

#include <absl/container/flat_hash_map.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <utility>

#include "common/task.h"

struct fuse_session;

namespace nacre::fuse {

class Invalidator {
 public:
  explicit Invalidator(fuse_session* session) : session_(session), sender_(session) {}
  ~Invalidator() { Stop(); }

  // Attributes, and the pages that hold bytes of [begin, end); `end` UINT64_MAX: to the end of the file. The
  // value arrives when none of these pages is left.
  OneShot<Unit> Inode(uint64_t node, uint64_t begin, uint64_t end);

  // Attributes alone, before it returns: for these the kernel waits for nothing.
  void Attributes(uint64_t node);

  // Drops what is queued (with its values set) and ends the threads. The kernel's end must be gone, or a
  // message may block.
  void Stop();

 private:
  static constexpr size_t kMostThreads = 64;

  // Where a message begins: a node, and a place in its file.
  using Place = std::pair<uint64_t, uint64_t>;

  // Sends messages: those of one place in their order, those of different places side by side.
  class Sender {
   public:
    using Message = std::function<void(fuse_session*)>;  // called with null: only sets its value

    explicit Sender(fuse_session* session) : session_(session) {}
    void Push(const Place& place, Message message);
    void Stop();

   private:
    void Run();

    fuse_session* const session_;
    std::mutex mutex_;
    std::condition_variable changed_;
    absl::flat_hash_map<Place, std::deque<Message>>
        queues_;               // not empty, but where the last one is being sent
    std::deque<Place> ready_;  // with messages, and none being sent
    size_t threads_ = 0, idle_ = 0;
    bool stopped_ = false;
  };

  std::mutex mutex_;
  fuse_session* session_;  // null after Stop
  Sender sender_;
};

}  // namespace nacre::fuse
