// The filesystem as one client sees it: every POSIX operation as a task. FUSE, the C++ API and the simulation
// call it.
//
// Owns the session, the leases, the attribute and directory caches and the file data cache. Thread-safe:
// operations may be started from any thread and run on the executor given at Mount. Names are bytes without
// '/' and NUL; errors carry the errno that an application should see.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/cancellation.h"
#include "common/clock.h"
#include "common/ids.h"
#include "common/random.h"
#include "common/status.h"
#include "common/task.h"
#include "proto/cluster.pb.h"
#include "proto/metadata.pb.h"
#include "rpc/metadata_channel.h"
#include "rpc/object_stub.h"
#include "transport/transport.h"

namespace nacre::client {

struct Options {
  std::string name;       // host and mountpoint, for nacre status
  bool replaces = false;  // no other process of this name is alive: its session may be ended at once
  RetryPolicy retry;
  uint64_t cache_bytes = 128 << 20;  // file data, clean and dirty
  uint64_t known_bytes = 0;          // attributes, names and the bytes of small files; 0: as cache_bytes says
  uint64_t dirty_bytes = 64 << 20;   // of these, not yet sent
  uint64_t readahead_bytes = 8 << 20;  // at most, per open file
  Duration write_behind =
      std::chrono::seconds(5);  // dirty data and sizes are sent after so long at the latest
  Duration kernel_cache =
      std::chrono::seconds(1);  // how long the kernel may trust an answer given under a lease
  // After which a directory's lease counts as quiet: the kernel may keep names and attributes under it.
  Duration quiet = std::chrono::milliseconds(100);
  // A file that others have wanted back gets no WRITE lease of its own for so long.
  Duration file_peace = std::chrono::seconds(5);
  // At the unmount: how long it is tried to write back what is held back, while a server is away.
  Duration unmount_patience = std::chrono::seconds(30);
  // Bugs planted for the simulation (docs/testing.md): never on otherwise.
  bool plant_no_expiry = false;      // what is cached is used for as long as the MDS does not object
  bool plant_rename_first = false;   // a file takes another's place before its bytes are with the servers
  bool plant_untold = false;         // a lease goes back with handles under it that the MDS was not told of
  bool plant_hasty = false;          // a lease goes back before the kernel has forgotten what it was promised
  bool plant_early_release = false;  // a lease goes back before the MDS has done what was answered under it
  bool plant_kept_data = false;      // a lease goes back before the servers have the data held back under it
  bool plant_shared_untold = false;  // a file is not shared any more before the MDS knows what was written
  bool plant_late_grant = false;     // a lease is taken over whose revocation came before it
  bool caching = true;               // false: ask for no leases, cache nothing
  bool direct_behind = true;  // an O_DIRECT write returns when it is on its way; false: when it is there
  bool verify = true;         // check arriving data against its checksums
  // A planted bug, too: what a member of an OST answers counts whatever version the head has.
  bool plant_unwitnessed = false;
  // From so many bytes on a read of an OST of several members may go to any of them.
  uint32_t spread_reads_from = 64 << 10;
  std::string transport = "auto";  // how Environment::transport was chosen; told to libnacre by nacre.place
};

struct Environment {
  Executor executor;
  Clock& clock;
  Random& random;
  Transport& transport;
  std::shared_ptr<MetadataConnector> metadata;
};

struct Caller {
  uint32_t uid = 0;
  uint32_t gid = 0;
  std::vector<uint32_t> groups;
  uint32_t pid = 0;
};

// Callbacks into the layer above for when a lease goes and the kernel must forget. Called outside of all
// locks.
struct Invalidation {
  // Attributes of an inode, and its pages that hold bytes of [begin, end); returns when none of these is
  // left.
  std::function<Task<void>(Fid, uint64_t begin, uint64_t end)> data_and_attributes;
  // Attributes of an inode. Does not wait for anything.
  std::function<void(Fid)> attributes;
};

// Attributes, and until when the layer above may keep them without asking, by the steady clock of the
// filesystem's Environment (0: not at all), and the name by which they were asked for. They may have come
// later than was promised. A name may be kept for longer than the attributes: those of a directory in which
// several clients work stand under no lease, while its name in the directory around it does.
struct Known {
  proto::Attr attr;
  Duration until{0};
  Duration name_until{0};
};

struct DirEntry {
  std::string name;
  Fid fid;
  uint32_t type = 0;  // d_type
  uint64_t cookie = 0;
  std::optional<Known> known;  // with plus
};

// File data that stays in place while this lives: pieces of cache or of a buffer made for the purpose.
struct ReadResult {
  std::vector<std::span<const std::byte>> pieces;
  size_t size = 0;  // less than asked: end of file
  std::shared_ptr<void> keep;
};

// Bytes of a file and the registered memory, the CPU's or a device's, that they are to go to.
struct ReadPiece {
  uint64_t offset = 0;
  MemorySpan memory;
};

struct PiecesRead {
  std::vector<uint64_t> sizes;  // of each piece; less than asked: end of file
  std::string path;             // that they took: as PathInfo's, several with commas; "mds": inline data
  bool verified = false;        // against checksums, where they have arrived
};

class FileHandle;  // an open file or directory (client/file.h)
using HandlePtr = std::shared_ptr<FileHandle>;

struct Created {
  Known known;
  HandlePtr handle;
};

struct SetAttributes {  // an absent field stays as it is
  std::optional<uint32_t> mode, uid, gid;
  std::optional<uint64_t> size;
  std::optional<WallTime> atime, mtime;
  bool atime_now = false, mtime_now = false, kill_suid = false;
};

// Of an open file: FUSE's direct_io, neither flag, keep_cache.
enum class KernelPages {
  kNone,  // none for reads and writes; mappings have some
  kNew,   // those it has from before must go
  kKept,  // those it has from before are good
};

using LockedPages = std::shared_ptr<void>;  // FileSystem::HoldPages
enum class PageUse { kFill, kWrite };

struct Seen {  // for nacre status and bench
  std::vector<std::string> paths;
  uint64_t cached_bytes = 0, dirty_bytes = 0, inodes = 0;
  uint64_t known_bytes = 0;  // Options::known_bytes
  uint64_t small_bytes = 0;  // of these, the bytes of small files
  bool connected = false;    // to the MDS
  // Changes on their way to the MDS are counted in their order: the newest one whose caller has been answered
  // already, and the newest one that the MDS has done.
  uint64_t early_answered = 0;
  uint64_t early_writes = 0;  // writes of files' bytes that were answered before the MDS had them
  uint64_t early_done = 0;
  uint64_t epoch = 0;  // of the session: rises with each eviction
};

class FileSystem {
 public:
  // Connects, opens a session, learns the cluster map.
  static Task<StatusOr<std::unique_ptr<FileSystem>>> Mount(Environment environment, Options options);
  virtual ~FileSystem() = default;

  // Writes everything back and ends the session. Call it once, before destruction. In its absence the session
  // is lost as by a crash.
  virtual Task<Status> Unmount() = 0;

  virtual void SetInvalidation(Invalidation invalidation) = 0;

  // Namespace. `until` of a NOT_FOUND lookup: *absent_until.
  virtual Task<StatusOr<Known>> Lookup(const Caller& caller, Fid parent, std::string name,
                                       Duration* absent_until) = 0;
  virtual Task<StatusOr<Known>> Getattr(const Caller& caller, Fid fid, HandlePtr handle) = 0;
  virtual Task<StatusOr<Known>> Setattr(const Caller& caller, Fid fid, SetAttributes set,
                                        HandlePtr handle) = 0;
  virtual Task<StatusOr<Known>> Mknod(const Caller& caller, Fid parent, std::string name, uint32_t mode,
                                      uint64_t rdev) = 0;
  virtual Task<StatusOr<Known>> Symlink(const Caller& caller, Fid parent, std::string name,
                                        std::string target) = 0;
  virtual Task<StatusOr<std::string>> Readlink(const Caller& caller, Fid fid) = 0;
  virtual Task<Status> Unlink(const Caller& caller, Fid parent, std::string name) = 0;
  virtual Task<Status> Rmdir(const Caller& caller, Fid parent, std::string name) = 0;
  virtual Task<Status> Rename(const Caller& caller, Fid parent, std::string name, Fid new_parent,
                              std::string new_name, uint32_t flags) = 0;
  virtual Task<StatusOr<Known>> Link(const Caller& caller, Fid fid, Fid parent, std::string name) = 0;
  virtual Task<StatusOr<proto::StatfsReply>> Statfs(const Caller& caller) = 0;

  // Directories: entries behind the cookie (0: the first), without "." and ".."; empty: the end.
  virtual Task<StatusOr<HandlePtr>> Opendir(const Caller& caller, Fid fid) = 0;
  virtual Task<StatusOr<std::vector<DirEntry>>> Readdir(const Caller& caller, HandlePtr directory,
                                                        uint64_t cookie, size_t limit, bool plus) = 0;

  // Files. flags as open(2): access mode, O_APPEND, O_TRUNC, O_SYNC, O_DIRECT.
  virtual Task<StatusOr<Created>> Create(const Caller& caller, Fid parent, std::string name, uint32_t mode,
                                         int flags) = 0;
  virtual Task<StatusOr<HandlePtr>> Open(const Caller& caller, Fid fid, int flags) = 0;
  virtual Task<Status> Release(HandlePtr handle) = 0;  // last use of a handle; reports what write-behind met
  virtual Task<Status> Flush(HandlePtr handle, uint64_t lock_owner) = 0;  // close(2) of one descriptor
  virtual Task<Status> Fsync(HandlePtr handle, bool data_only) = 0;
  virtual Task<StatusOr<ReadResult>> Read(HandlePtr handle, uint64_t offset, size_t size) = 0;
  // Past the cache into memory of the reader's own; sees what Read would see. After an error the memory has
  // anything; behind the end of the file it is left as it was. When it is cancelled nobody touches the memory
  // any more, though this may return later.
  virtual Task<StatusOr<PiecesRead>> ReadInto(HandlePtr handle, std::vector<ReadPiece> pieces,
                                              CancellationPtr cancellation) = 0;
  // The pieces may be reused when the task has returned. Appends where the handle has O_APPEND.
  virtual Task<StatusOr<size_t>> Write(HandlePtr handle, uint64_t offset,
                                       std::span<const std::span<const std::byte>> pieces) = 0;
  // Pages of a mapping that the kernel writes back, through any handle open for writing: its O_APPEND and
  // O_SYNC do not count, and no caller waits.
  virtual Task<StatusOr<size_t>> WriteBack(HandlePtr handle, uint64_t offset,
                                           std::span<const std::span<const std::byte>> pieces) = 0;
  virtual Task<Status> Fallocate(HandlePtr handle, int mode, uint64_t offset, uint64_t length) = 0;
  virtual Task<StatusOr<uint64_t>> Seek(HandlePtr handle, uint64_t offset,
                                        int whence) = 0;  // SEEK_DATA, SEEK_HOLE
  virtual Task<StatusOr<size_t>> CopyRange(HandlePtr from, uint64_t from_offset, HandlePtr to,
                                           uint64_t to_offset, size_t size) = 0;

  // Extended attributes, nacre.* included (layouts; docs/man/nacre-setstripe.1).
  virtual Task<StatusOr<std::string>> GetXattr(const Caller& caller, Fid fid, std::string name) = 0;
  virtual Task<Status> SetXattr(const Caller& caller, Fid fid, std::string name, std::string value,
                                int flags) = 0;
  virtual Task<StatusOr<std::vector<std::string>>> ListXattr(const Caller& caller, Fid fid) = 0;
  virtual Task<Status> RemoveXattr(const Caller& caller, Fid fid, std::string name) = 0;

  // Locks. A wait ends with EINTR when CancelLock is called with its id.
  virtual Task<StatusOr<proto::LockRange>> GetLock(HandlePtr handle, proto::LockRange lock) = 0;
  virtual Task<Status> SetLock(HandlePtr handle, proto::LockRange lock, bool wait, uint64_t wait_id) = 0;
  virtual void CancelLock(HandlePtr handle, uint64_t wait_id) = 0;

  // The kernel's pages (FUSE): says what an open may tell the kernel about them.
  virtual KernelPages PagesFor(const HandlePtr& handle) = 0;
  // Before bytes of [offset, offset + size) are read, or written, that the kernel will keep in pages, through
  // whichever handle. From then on it is told (Invalidation) before another client's change of the file
  // returns. The kernel holds these pages locked until it has its answer, as long as the value lives.
  virtual Task<StatusOr<LockedPages>> HoldPages(HandlePtr handle, uint64_t offset, size_t size,
                                                PageUse use) = 0;
  // Whether these attributes, which were answered here with a time, are still those of the inode. An answer
  // may be overtaken by that to a later change on its way to the kernel, which would keep the older one.
  virtual bool IsCurrent(const proto::Attr& attr) = 0;
  // Whether there may be pages of the file: who writes past them has them dropped.
  virtual bool MayHavePages(const HandlePtr& handle) = 0;
  virtual Seen Look() = 0;
};

}  // namespace nacre::client
