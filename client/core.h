// The implementation of FileSystem: one object that holds the session, the targets and the caches; the
// operations are in one file each or in small groups (lookup.cc, create.cc, remove.cc, open.cc, read.cc,
// write.cc, …).
//
// Each of the members below owns its state; what is left here follows from several of them.
//
// Everything that leases of directories cover is answered from memory, changes of it are answered early under
// WRITE (scope.h), and everything else goes to the servers (docs/architecture.md, Leases). Each operation
// passes the gate and stays in one epoch of the session until it leaves; the gate is closed for the change
// from one epoch to the next (eviction.cc). Thread-safe.
#pragma once

#include <atomic>
#include <cerrno>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "client/background.h"
#include "client/cache_reads.h"
#include "client/caller.h"
#include "client/data_cache.h"
#include "client/dirty_files.h"
#include "client/durability.h"
#include "client/early_changes.h"
#include "client/entrance.h"
#include "client/file_data.h"
#include "client/file_locks.h"
#include "client/filesystem.h"
#include "client/handles.h"
#include "client/held_data.h"
#include "client/held_leases.h"
#include "client/inode.h"
#include "client/inode_table.h"
#include "client/kept_pages.h"
#include "client/kernel_cache.h"
#include "client/knowledge.h"
#include "client/lease_returns.h"
#include "client/mds_calls.h"
#include "client/mdt_room.h"
#include "client/metadata_queue.h"
#include "client/moving_out.h"
#include "client/object_io.h"
#include "client/own_data.h"
#include "client/power_losses.h"
#include "client/session.h"
#include "client/space_change.h"
#include "client/targets.h"
#include "client/telling.h"
#include "client/write_behind.h"
#include "rpc/convert.h"

namespace nacre::client {

// Passes the gate, without a coroutine where it is open. A task that is cancelled before that gives up.
#define NACRE_ENTER(pass)                 \
  Gate::Pass pass = entrance_.TryEnter(); \
  if (!pass) CO_RETURN_IF_ERROR(co_await entrance_.Enter(&pass))

class Core final : public FileSystem {
 public:
  Core(Environment environment, Options options);
  ~Core() override;

  Task<Status> Start();
  Task<void> Abandon();  // after a Start that failed

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
  using Reply = StatusOr<proto::MetadataReply>;

  // --- the session (mount.cc, eviction.cc) ---
  void MakeDataParts();
  void OnConnected(const proto::ConnectReply& reply, bool fresh, uint64_t epoch);
  void OnPush(const proto::Push& push);
  void OnEvicted(uint64_t epoch);
  std::vector<proto::Reclaim> Held();
  Task<void> StartAnew(uint64_t epoch);
  void TakeMap(const proto::ClusterMap& map);
  // --- the end (unmount.cc) ---
  Task<void> LastSend(std::shared_ptr<Status> sent, OneShot<Unit> ended);
  Status TellLoss();
  std::vector<std::string> PathsOf(const std::vector<Fid>& files);

  // --- handles (open.cc) ---
  HandlePtr TryOpenLocally(const Caller& caller, Fid fid, int flags);
  Task<StatusOr<HandlePtr>> OpenInside(const Caller& caller, Fid fid, int flags);  // past the gate
  InodePtr KnownFile(Inode& directory, const std::string& name);
  Task<Status> OpenAtMds(const Caller& caller, InodePtr inode, proto::MetadataRequest request);
  Task<Status> OpenEmpty(const Caller& caller, InodePtr inode, proto::MetadataRequest request);
  Task<StatusOr<bool>> EmptyAtMds(const Caller& caller, InodePtr inode, proto::MetadataRequest request);
  void NoteAnswer(FileHandle& handle, uint64_t named, bool opened);
  void DropHandle(const HandlePtr& handle);

  // --- names (create.cc, directory.cc, remove.cc) ---
  Task<StatusOr<Known>> MakeNode(const Caller& caller, Fid parent, std::string name,
                                 proto::MetadataRequest request);
  void NoteScan(FileHandle& directory, FillToken token, uint64_t cookie, const std::vector<DirEntry>& entries,
                bool kept, bool end);
  Task<Status> Remove(const Caller& caller, Fid parent, std::string name, bool directory);
  std::vector<InodePtr> TakingPlaces(const EarlyRename& rename, uint32_t flags);
  Task<Status> SendBeforeReplacing(const EarlyRename& rename, uint32_t flags);
  void DiscardIfGone(const proto::Attr& attr);

  // --- reading (read.cc, leased_reads.cc) ---
  Task<StatusOr<ReadResult>> ReadCached(HandlePtr handle, uint64_t offset, size_t size);
  Task<StatusOr<ReadResult>> ReadInCache(HandlePtr handle, uint64_t offset, size_t size);
  Task<StatusOr<ReadResult>> ReadThrough(HandlePtr handle, uint64_t offset, size_t size);
  Task<StatusOr<ReadResult>> ReadLarge(HandlePtr handle, uint64_t offset, size_t size);
  Task<StatusOr<std::vector<std::byte>>> ReadCopy(HandlePtr handle, uint64_t offset, size_t size);
  bool WantsContentLease(FileHandle& handle);
  Task<void> LeaseContent(HandlePtr handle);

  // --- past the cache into the reader's memory (read_into.cc) ---
  struct ReadIntoJob;
  Task<Status> ReadLane(ReadIntoJob* job);
  Task<Status> ReadSlice(ReadIntoJob* job, size_t begin, size_t end);
  Task<StatusOr<bool>> TryReadSlice(ReadIntoJob* job, size_t begin, size_t end, bool last);
  Task<StatusOr<FileContent>> ContentForReading(InodePtr inode);
  Task<Status> CopyInline(ReadIntoJob* job, size_t begin, size_t end, std::shared_ptr<std::string> bytes);
  Task<StatusOr<bool>> ReadParts(ReadIntoJob* job, size_t begin, size_t end, LayoutPtr layout);
  Task<bool> Replaced(InodePtr inode, const FileContent& content);

  // --- writing (write.cc, append.cc) ---
  struct HeldRange {
    RangeLock::Guard range;
    uint64_t offset = 0;
    bool is_inline = false;
    bool taken = false;  // the file's data is worked on here
    bool outgrowing = false;
  };
  Task<StatusOr<size_t>> WriteSomehow(HandlePtr handle, uint64_t offset, Pieces pieces, size_t size);
  static Task<StatusOr<HeldRange>> LockHeld(InodePtr inode, std::optional<uint64_t> offset, size_t size,
                                            MayGiveUp may);
  Task<StatusOr<std::optional<size_t>>> WriteHeld(HandlePtr handle, std::optional<uint64_t> offset,
                                                  Pieces pieces, size_t size, MayGiveUp may);
  Task<StatusOr<size_t>> WriteDirect(HandlePtr handle, InodePtr inode, LayoutPtr layout, uint64_t offset,
                                     Pieces pieces, size_t size);
  Task<StatusOr<size_t>> WriteCachedObjects(HandlePtr handle, uint64_t offset, Pieces pieces, size_t size);
  void StartSending(const InodePtr& inode, bool direct);
  Task<StatusOr<size_t>> WriteThrough(HandlePtr handle, uint64_t offset, Pieces pieces, size_t size,
                                      MayGiveUp may);
  Task<StatusOr<LayoutPtr>> LayoutForWriting(InodePtr inode, bool again, LayoutPtr stale);
  Task<Status> WriteInlineThrough(HandlePtr handle, std::optional<uint64_t> offset, Pieces pieces,
                                  size_t size, RangeLock::Guard* range);
  Task<StatusOr<size_t>> WriteInlineNow(HandlePtr handle, uint64_t offset, Pieces pieces, size_t size);
  Task<StatusOr<size_t>> AppendThrough(HandlePtr handle, Pieces pieces, size_t size);
  Task<StatusOr<size_t>> AppendOnce(HandlePtr handle, Pieces pieces, size_t size);
  Task<StatusOr<proto::AppendReply>> AskToAppend(HandlePtr handle, Pieces pieces, size_t size,
                                                 RangeLock::Guard* range);
  void NoteWrite(Inode& inode, const Caller& caller, uint64_t end);
  Status PutInline(Inode& inode, const Caller& caller, uint64_t offset, Pieces pieces, size_t size);
  Task<Status> ChangeSpaceThrough(HandlePtr handle, SpaceChange change);

  // --- truncation (setattr.cc) ---
  bool MayHoldCutsBack() const;
  Task<StatusOr<bool>> TryCutBehind(InodePtr inode);
  Task<StatusOr<bool>> TryTruncateBehind(const Caller& caller, InodePtr inode, const SetAttributes& set,
                                         bool open_for_writing);
  Task<Status> Truncate(const Caller& caller, InodePtr inode, proto::MetadataRequest request);
  Task<StatusOr<bool>> TruncateAtMds(const Caller& caller, InodePtr inode, proto::MetadataRequest request);

  // --- fsync and errors (sync.cc) ---
  Task<Status> SyncFile(InodePtr inode, bool data_only);
  Task<Status> SyncMount();
  Status TakeError(FileHandle& handle);
  Status TakeErrorForSync(FileHandle& handle);

  // --- attributes (xattr.cc) ---
  bool NoXattrs(Fid fid);
  Task<StatusOr<std::string>> GetVirtual(const Caller& caller, Fid fid, std::string name);
  bool MayHaveCapability(Inode& inode);
  Task<Status> TakeCapability(InodePtr inode);
  Task<Status> SetLayout(const Caller& caller, InodePtr inode, proto::MetadataRequest request);
  Task<Status> ChangeXattr(const Caller& caller, Fid fid, proto::MetadataRequest request);

  const Environment environment_;
  const Options options_;
  Background background_;
  KernelCache kernel_;
  std::shared_ptr<DataCache> cache_;
  std::unique_ptr<Targets> targets_;
  std::unique_ptr<ObjectIo> io_;
  std::unique_ptr<InodeTable> inodes_;
  std::unique_ptr<HeldLeases> leases_;
  OwnData own_data_;
  std::shared_ptr<Session> session_;
  Entrance entrance_;
  std::unique_ptr<Knowledge> knowledge_;
  std::unique_ptr<CacheReads> reads_;
  std::unique_ptr<KeptPages> pages_;
  std::unique_ptr<MetadataQueue> queue_;
  std::unique_ptr<Handles> handles_;
  std::unique_ptr<EarlyChanges> early_;
  std::unique_ptr<MdsCalls> mds_;
  std::unique_ptr<Durability> durability_;
  FileLocks locks_;
  MdtRoom room_;
  DirtyFiles dirty_;
  std::unique_ptr<FileData> data_;
  std::unique_ptr<Telling> telling_;
  std::unique_ptr<MovingOut> moving_out_;
  std::unique_ptr<WriteBehind> write_behind_;
  std::unique_ptr<HeldData> held_data_;
  std::unique_ptr<LeaseReturns> returns_;
  std::unique_ptr<PowerLosses> losses_;
  std::atomic<uint64_t> mdt_losses_{0};  // proto::ConnectReply
};

}  // namespace nacre::client
