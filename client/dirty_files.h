// Which files of a mount hold something back, in the order in which they began to, and when it is time to
// send it. Thread-safe. Each file's mutex is taken inside of its own.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "client/filesystem.h"
#include "client/inode.h"

namespace nacre::client {

class DirtyFiles {
 public:
  // Called outside of all locks; `due` and `idle` on the environment's executor.
  struct Hooks {
    std::function<void()> crowded;  // there are many
    std::function<void()>
        due;  // some may have been here for half of Options::write_behind, with as much to go
    std::function<void()> idle;  // there have been none for that time
  };
  DirtyFiles(const Environment& environment, const Options& options, Hooks hooks);

  // Not twice, and not a file that has gone (Inode::listed_dirty).
  void List(const InodePtr& inode);
  // Takes those off the list that have been on it for so long. They count as listed still: whoever looks at
  // what they hold back says first that they are not (Inode::listed_dirty).
  std::vector<InodePtr> TakeOlder(Duration age);
  std::vector<InodePtr> TakeAll();

  // Files that are to be sent at once, with others that come at this time. True: it is the first of them, and
  // the caller sees to it that they are taken.
  bool ListClosed(const InodePtr& inode);
  std::vector<InodePtr> TakeClosed();

  // From now on no hook is called by the clock.
  void Stop();

 private:
  void ArmLocked();
  void OnTimer();

  const Environment& environment_;
  const Options& options_;
  const Hooks hooks_;

  std::mutex mutex_;
  std::vector<InodePtr> dirty_;   // first come first
  std::vector<InodePtr> closed_;  // about to be sent
  std::unique_ptr<TimerHandle> timer_;
  bool stopped_ = false;
};

}  // namespace nacre::client
