#include "fuse/invalidator.h"

#include <cerrno>
#include <cstring>

#include "common/log.h"
#include "fuse/libfuse.h"

namespace nacre::fuse {
namespace {

// ENOENT: the kernel does not know it, which is as good. ENOTCONN and ENODEV: unmounted.
void LogRefusal(const char* what, int result) {
  if (result == 0 || result == -ENOENT || result == -ENOTCONN || result == -ENODEV || result == -EBADF)
    return;
  LogWarning("the kernel refused to forget %s: %s", what, std::strerror(-result));
}

}  // namespace

OneShot<Unit> Invalidator::Inode(uint64_t node) {
  OneShot<Unit> done;
  inodes_.Push([node, done](fuse_session* session) {
    if (session != nullptr) LogRefusal("an inode", fuse_lowlevel_notify_inval_inode(session, node, 0, 0));
    done.Set({});
  });
  return done;
}

void Invalidator::Entry(uint64_t parent, std::string name) {
  entries_.Push([parent, name = std::move(name)](fuse_session* session) {
    if (session == nullptr) return;
    LogRefusal("an entry", fuse_lowlevel_notify_inval_entry(session, parent, name.data(), name.size()));
  });
}

void Invalidator::Stop() {
  inodes_.Stop();
  entries_.Stop();
}

void Invalidator::Worker::Push(std::function<void(fuse_session*)> message) {
  {
    std::lock_guard lock(mutex_);
    if (!stopped_) {
      queue_.push_back(std::move(message));
      if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
      message = nullptr;
    }
  }
  if (message) {
    message(nullptr);
  } else {
    wake_.notify_one();
  }
}

void Invalidator::Worker::Stop() {
  {
    std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void Invalidator::Worker::Run() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stopped_ || !queue_.empty(); });
    if (queue_.empty()) return;
    std::function<void(fuse_session*)> message = std::move(queue_.front());
    queue_.pop_front();
    fuse_session* session = stopped_ ? nullptr : owner_.session_;
    lock.unlock();
    message(session);
    lock.lock();
  }
}

}  // namespace nacre::fuse
