// State that all requests of one mount share. Internal to fuse/.
//
// Kept alive by the Mount, its threads and every request in progress. Thread-safe.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "client/filesystem.h"
#include "common/clock.h"
#include "fuse/buffers.h"
#include "fuse/callers.h"
#include "fuse/init_reply.h"
#include "fuse/interrupts.h"
#include "fuse/invalidator.h"
#include "fuse/libfuse.h"
#include "fuse/mount.h"
#include "fuse/nodes.h"
#include "fuse/start_executor.h"

namespace nacre::fuse {

class Session : public std::enable_shared_from_this<Session> {
 public:
  Session(client::FileSystem& filesystem, Executor executor, MountOptions options);
  ~Session();

  // Mounts and starts the threads. Call once.
  Status Start();

  // Takes the mount off if it is still there; see Mount::Unmount.
  Status Stop(Duration patience);

  client::FileSystem& filesystem() { return filesystem_; }
  const Executor& executor() const { return executor_; }
  const MountOptions& options() const { return options_; }
  NodeTable& nodes() { return nodes_; }
  Callers& callers() { return callers_; }
  Invalidator& invalidator() { return *invalidator_; }
  InitReply& init_reply() { return init_reply_; }
  const OneShot<Unit>& ended() const { return ended_; }

  void RequestBegins() { running_.fetch_add(1, std::memory_order_relaxed); }
  void RequestEnds();

  // The request that this thread is handing out is being started. If its task has to wait, its caller can be
  // let go from then on.
  static void Started(std::shared_ptr<Answer> answer);
  // The bytes of the request that this thread is handing out stay in place until the task that is started
  // next has ended. The returned pointer owns them if they were copied, as they are while many tasks are at
  // work.
  std::shared_ptr<std::byte> KeepBytes(std::span<const std::byte>* bytes);

 private:
  Status MountKernel();
  void SetReadAhead();
  void OfferInvalidation();
  void Serve();
  bool ServeOne(fuse_buf* request, StartExecutor::Queue* posted);
  void TakeOff(Duration patience);
  bool WaitUntil(Duration patience, const std::function<bool()>& done);

  client::FileSystem& filesystem_;
  const Executor executor_;
  const MountOptions options_;
  fuse_session* fuse_ = nullptr;
  std::string device_;  // of the mount, "0:52"
  NodeTable nodes_;
  Callers callers_{RealClock()};
  BufferPool buffers_;
  InitReply init_reply_;
  Interrupts interrupts_{RealClock()};
  std::unique_ptr<Invalidator> invalidator_;
  OneShot<Unit> ended_;

  std::atomic<int64_t> running_{0};  // requests
  std::mutex mutex_;
  std::condition_variable changed_;
  unsigned serving_ = 0;  // threads
};

// The request handlers of all operations (operations.cc).
const fuse_lowlevel_ops& Operations();

}  // namespace nacre::fuse
