// Tells the kernel to forget. Such a message may block (for a page that is being read, for a directory that
// an operation is working in), so it is never sent by a thread that requests depend on: inodes and entries
// have a thread each, because an entry may have to wait for an operation that itself waits for an inode.
// Thread-safe.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "common/task.h"

struct fuse_session;

namespace nacre::fuse {

class Invalidator {
 public:
  explicit Invalidator(fuse_session* session) : session_(session), inodes_(*this), entries_(*this) {}
  ~Invalidator() { Stop(); }

  // Pages and attributes. The value arrives when no page is left.
  OneShot<Unit> Inode(uint64_t node);

  // A name and what lies behind it.
  void Entry(uint64_t parent, std::string name);

  // Drops what is queued (with its values set) and ends the threads. The kernel's end must be gone, or a
  // message may block.
  void Stop();

 private:
  class Worker {
   public:
    explicit Worker(Invalidator& owner) : owner_(owner) {}
    void Push(std::function<void(fuse_session*)> message);
    void Stop();

   private:
    void Run();

    Invalidator& owner_;
    std::mutex mutex_;
    std::condition_variable wake_;
    std::deque<std::function<void(fuse_session*)>> queue_;  // called with null: only sets its value
    bool stopped_ = false;
    std::thread thread_;  // started by the first message
  };

  fuse_session* const session_;
  Worker inodes_, entries_;
};

}  // namespace nacre::fuse
