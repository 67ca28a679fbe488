// Tells the kernel to forget. Such a message may block, for a page that is being read from a server that is
// away. So it is never sent by a thread that requests depend on, and what blocks one place in a file holds up
// no other: there are as many threads as messages that block, up to kMostThreads. Messages for one place are
// sent in their order. Thread-safe.
#pragma once

#include <absl/container/flat_hash_map.h>
#include <sys/types.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

#include "common/task.h"

struct fuse_session;

namespace nacre::fuse {

class Invalidator {
 public:
  explicit Invalidator(fuse_session* session) : session_(session) {}
  ~Invalidator() { Stop(); }
  Invalidator(const Invalidator&) = delete;

  // Attributes, and the pages that hold bytes of [begin, end); `end` UINT64_MAX: to the end of the file. The
  // value arrives when none of these pages is left.
  OneShot<Unit> Inode(uint64_t node, uint64_t begin, uint64_t end);

  // Attributes alone, before it returns: for these the kernel waits for nothing.
  void Attributes(uint64_t node);

  // Drops what is queued (with its values set) and ends the threads. The kernel's end must be gone, or a
  // message may block.
  void Stop();

 private:
  static constexpr size_t kMostThreads = 1024;  // more than the kernel has requests for pages under way

  // Where a message begins: a node, and a place in its file.
  using Place = std::pair<uint64_t, uint64_t>;
  struct Message {
    off_t length;  // 0: to the end of the file
    OneShot<Unit> done;
  };

  void Run();
  void Send(const Place& place, const Message& message) const;

  fuse_session* const session_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // A place has a queue, if only an empty one, as long as one of its messages waits or is being sent.
  absl::flat_hash_map<Place, std::deque<Message>> queues_;
  std::deque<Place> ready_;  // with messages, and none being sent
  size_t threads_ = 0, idle_ = 0;
  size_t callers_ = 0;  // within Attributes, sending
  bool stopped_ = false;
};

}  // namespace nacre::fuse
