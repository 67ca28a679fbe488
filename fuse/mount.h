// A FUSE mount of a client::FileSystem.
//
// Owns the kernel's session and the threads that read requests from it; borrows the FileSystem, which must
// outlive the Mount. A request runs on the thread that read it until it first waits for something, then on
// the executor. Start, Unmount and the destructor block; call them from outside the executor's threads.
// Errors name the mountpoint and what to do.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/filesystem.h"
#include "common/status.h"
#include "common/task.h"

namespace nacre::fuse {

struct MountOptions {
  std::string mountpoint;
  std::string source = "nacre";  // first column of /proc/mounts
  unsigned threads = 0;          // that read requests; 0: one per core, at most four
  bool read_only = false;
  bool nosuid = false, nodev = false,
       noexec = false;                  // nosuid and nodev always where an ordinary user mounts
  bool allow_other = true;              // every user; the kernel checks permissions (default_permissions)
  bool direct_maps = true;              // false: as on kernels before 6.6 (InitReply::direct_files_map)
  uint32_t max_background = 128;        // readahead and asynchronous requests on their way at once
  uint32_t read_ahead_bytes = 4 << 20;  // by the kernel; set through /sys, hence only by root
};

class Session;

class Mount {
 public:
  // Mounts and serves. A mount that a dead daemon left on the mountpoint is taken off first. Gives the
  // file system its Invalidation.
  static StatusOr<std::unique_ptr<Mount>> Start(client::FileSystem& filesystem, Executor executor,
                                                MountOptions options);

  ~Mount();  // unmounts
  Mount(const Mount&) = delete;
  Mount& operator=(const Mount&) = delete;

  // Arrives when the mount is gone, whoever took it off.
  const OneShot<Unit>& ended() const;

  // Takes the mount off, lazily if files are still open on it, and waits until no request is running any more
  // (at most `patience`: then EBUSY, and the FileSystem must stay). Does nothing the second time.
  Status Unmount(Duration patience = std::chrono::seconds(30));

 private:
  explicit Mount(std::shared_ptr<Session> session);
  std::shared_ptr<Session> session_;
  bool unmounted_ = false;
};

// Whether something can be mounted there: ENOENT, ENOTDIR, or EBUSY for a mount that is in use. Takes off a
// mount of Nacre whose daemon is dead.
Status PrepareMountpoint(const std::string& mountpoint);

// Takes off whatever FUSE mount of Nacre lies on the mountpoint, dead or alive. NOT_FOUND if there is none.
Status UnmountPath(const std::string& mountpoint, bool lazy);

// One line of /proc/self/mountinfo. NOT_FOUND if nothing is mounted exactly there.
struct MountEntry {
  std::string type;  // "fuse.nacre"
  std::string source;
  std::string device;  // "0:52"
};
StatusOr<MountEntry> FindMount(const std::string& mountpoint);

// Where this source (MountOptions::source) is mounted.
std::vector<std::string> MountpointsOf(const std::string& source);

// A process, and what it has to do with a mount.
struct MountUser {
  int pid = 0;
  std::string program;
  std::string path;
};

// A process in whose mount namespace the device is mounted still, and where; of those that this process may
// look at.
std::optional<MountUser> MountedElsewhere(const std::string& device);

// The processes that have files or directories below the mountpoint open, run from there or work there, with
// one such path for each; of those that this process may look at.
std::vector<MountUser> UsersOf(const std::string& mountpoint);

}  // namespace nacre::fuse
