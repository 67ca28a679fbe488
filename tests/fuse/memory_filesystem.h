// A client::FileSystem that is a tree in memory: what fuse/ is tested over. Checks no permissions (the kernel
// does, by default_permissions), keeps open unlinked files, knows xattrs, locks and sparse files only as far
// as the tests look. Thread-safe.
#pragma once

#include <condition_variable>
#include <list>
#include <map>
#include <memory>
#include <mutex>

#include "client/filesystem.h"

namespace nacre::client {

struct MemoryNode {
  proto::Attr attr;
  std::string data;  // of a file; the target of a symlink
  std::map<std::string, std::shared_ptr<MemoryNode>> children;
  std::map<std::string, std::string> xattrs;
};
using NodePtr = std::shared_ptr<MemoryNode>;

// The object that a HandlePtr of this file system points to: client::FileHandle is the real client's own.
struct MemoryHandle {
  const NodePtr node;
  const int flags;

  static HandlePtr Make(NodePtr node, int flags) {
    auto handle = std::make_shared<MemoryHandle>(MemoryHandle{std::move(node), flags});
    return HandlePtr(handle, reinterpret_cast<FileHandle*>(handle.get()));
  }
  static MemoryHandle& Of(const HandlePtr& handle) { return *reinterpret_cast<MemoryHandle*>(handle.get()); }
};

class MemoryFileSystem : public FileSystem {
 public:
  explicit MemoryFileSystem(Executor executor);

  // Knobs and views of the tests.
  void SetMayCache(bool may);  // the filesystem lease
  void SetValid(Duration valid);
  void SetOvertaken(bool overtaken);  // answers are not current any more when the kernel is about to get them
  Invalidation& invalidation() { return invalidation_; }
  NodePtr Find(const std::string& path);
  Fid FidOf(const std::string& path);
  // As another client would: returns when the kernel has forgotten what it held.
  void Overwrite(const std::string& path, std::string data);
  void Forget(Fid fid);  // has the kernel drop pages and attributes
  uint64_t open_handles();
  uint64_t reads();
  uint64_t xattr_requests();
  Caller last_caller();
  // Requests that are held wait until they are let go, as requests in progress do while a server is away.
  void HoldReads(bool hold) { Hold(&hold_reads_, hold); }
  void HoldWrites(bool hold) { Hold(&hold_writes_, hold); }
  void HoldFlushes(bool hold) { Hold(&hold_flushes_, hold); }
  size_t waiting();  // requests

  Task<Status> Unmount() override;
  void SetInvalidation(Invalidation invalidation) override;
  Task<StatusOr<Known>> Lookup(const Caller& caller, Fid parent, std::string name,
                               Duration* absent_until) override;
  Task<StatusOr<Known>> Getattr(const Caller& caller, Fid fid, HandlePtr handle) override;
  Task<StatusOr<Known>> Setattr(const Caller& caller, Fid fid, SetAttributes set, HandlePtr handle) override;
  Task<StatusOr<Known>> Mknod(const Caller& caller, Fid parent, std::string name, uint32_t mode,
                              uint64_t rdev) override;
  Task<StatusOr<Known>> Symlink(const Caller& caller, Fid parent, std::string name,
                                std::string target) override;
  Task<StatusOr<std::string>> Readlink(const Caller& caller, Fid fid) override;
  Task<Status> Unlink(const Caller& caller, Fid parent, std::string name) override;
  Task<Status> Rmdir(const Caller& caller, Fid parent, std::string name) override;
  Task<Status> Rename(const Caller& caller, Fid parent, std::string name, Fid new_parent,
                      std::string new_name, uint32_t flags) override;
  Task<StatusOr<Known>> Link(const Caller& caller, Fid fid, Fid parent, std::string name) override;
  Task<StatusOr<proto::StatfsReply>> Statfs(const Caller& caller) override;
  Task<StatusOr<HandlePtr>> Opendir(const Caller& caller, Fid fid) override;
  Task<StatusOr<std::vector<DirEntry>>> Readdir(const Caller& caller, HandlePtr directory, uint64_t cookie,
                                                size_t limit, bool plus) override;
  Task<StatusOr<Created>> Create(const Caller& caller, Fid parent, std::string name, uint32_t mode,
                                 int flags) override;
  Task<StatusOr<HandlePtr>> Open(const Caller& caller, Fid fid, int flags) override;
  Task<Status> Release(HandlePtr handle) override;
  Task<Status> Flush(HandlePtr handle, uint64_t lock_owner) override;
  Task<Status> Fsync(HandlePtr handle, bool data_only) override;
  Task<StatusOr<ReadResult>> Read(HandlePtr handle, uint64_t offset, size_t size) override;
  Task<StatusOr<PiecesRead>> ReadInto(HandlePtr handle, std::vector<ReadPiece> pieces,
                                      CancellationPtr cancellation) override;
  Task<StatusOr<size_t>> Write(HandlePtr handle, uint64_t offset,
                               std::span<const std::span<const std::byte>> pieces) override;
  Task<StatusOr<size_t>> WriteBack(HandlePtr handle, uint64_t offset,
                                   std::span<const std::span<const std::byte>> pieces) override;
  Task<Status> Fallocate(HandlePtr handle, int mode, uint64_t offset, uint64_t length) override;
  Task<StatusOr<uint64_t>> Seek(HandlePtr handle, uint64_t offset, int whence) override;
  Task<StatusOr<size_t>> CopyRange(HandlePtr from, uint64_t from_offset, HandlePtr to, uint64_t to_offset,
                                   size_t size) override;
  Task<StatusOr<std::string>> GetXattr(const Caller& caller, Fid fid, std::string name) override;
  Task<Status> SetXattr(const Caller& caller, Fid fid, std::string name, std::string value,
                        int flags) override;
  Task<StatusOr<std::vector<std::string>>> ListXattr(const Caller& caller, Fid fid) override;
  Task<Status> RemoveXattr(const Caller& caller, Fid fid, std::string name) override;
  Task<StatusOr<proto::LockRange>> GetLock(HandlePtr handle, proto::LockRange lock) override;
  Task<Status> SetLock(HandlePtr handle, proto::LockRange lock, bool wait, uint64_t wait_id) override;
  void CancelLock(HandlePtr handle, uint64_t wait_id) override;
  KernelPages PagesFor(const HandlePtr& handle) override;
  Task<StatusOr<LockedPages>> HoldPages(HandlePtr handle, uint64_t offset, size_t size, PageUse use) override;
  bool MayHavePages(const HandlePtr& handle) override;
  bool IsCurrent(const proto::Attr& attr) override;
  Seen Look() override;

 private:
  struct Waiter {
    proto::LockRange lock;
    uint64_t id;
    OneShot<Status> turn;
  };

  // All under the lock.
  NodePtr NodeOf(const Fid& fid);
  StatusOr<NodePtr> DirectoryOf(const Fid& fid);
  Known KnownOf(const NodePtr& node) const;
  Duration Until() const;  // of what is answered now
  NodePtr NewNode(const Caller& caller, uint32_t mode);
  StatusOr<NodePtr> Insert(const Caller& caller, const Fid& parent, const std::string& name, uint32_t mode);
  void Touch(const NodePtr& node);
  void Drop(const NodePtr& directory, const std::string& name);
  const proto::LockRange* Conflict(const proto::LockRange& lock) const;
  void Apply(const proto::LockRange& lock);
  void GrantWaiters();

  void Hold(bool* which, bool hold);
  Task<void> WaitWhile(const bool* held);

  const Executor executor_;
  std::mutex mutex_;
  std::map<Fid, std::weak_ptr<MemoryNode>> nodes_;
  NodePtr root_;
  uint32_t next_object_ = 10;
  bool may_cache_ = true;
  std::set<Fid> paged_;  // held by HoldPages
  Duration valid_ = 1s;
  bool overtaken_ = false;
  Invalidation invalidation_;
  uint64_t open_handles_ = 0, reads_ = 0, xattr_requests_ = 0;
  Caller last_caller_;
  std::list<proto::LockRange> locks_;
  std::list<Waiter> waiters_;
  bool hold_reads_ = false, hold_writes_ = false, hold_flushes_ = false;
  std::list<std::pair<const bool*, OneShot<Unit>>> held_;  // by which of these
};

}  // namespace nacre::client
