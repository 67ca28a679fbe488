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
#include "client/file_locks.h"
#include "client/filesystem.h"
#include "client/handles.h"
#include "client/held_leases.h"
#include "client/inode.h"
#include "client/inode_table.h"
#include "client/kept_pages.h"
#include "client/kernel_cache.h"
#include "client/knowledge.h"
#include "client/mds_calls.h"
#include "client/mdt_room.h"
#include "client/metadata_queue.h"
#include "client/object_io.h"
#include "client/own_data.h"
#include "client/session.h"
#include "client/space_change.h"
#include "client/targets.h"
#include "rpc/convert.h"

namespace nacre::client {

// The room that a file's inode takes on the MDT when its size or times are told.
inline constexpr uint64_t kRecordRoom = 1024;

// Passes the gate, without a coroutine where it is open. Who is cancelled before gives up.
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
  using Pieces = std::span<const std::span<const std::byte>>;
  using Reply = StatusOr<proto::MetadataReply>;

  // --- session and lease (mount.cc, lease.cc, eviction.cc) ---
  void OnConnected(const proto::ConnectReply& reply, bool fresh, uint64_t epoch);
  void OnPush(proto::Push push);
  void OnEvicted(uint64_t epoch);
  Task<void> StartAnew(uint64_t epoch);
  // --- the end (unmount.cc) ---
  Task<void> LastSend(std::shared_ptr<Status> sent, OneShot<Unit> ended);
  Status TellLoss();
  std::vector<std::string> PathsOf(const std::vector<Fid>& files);
  void TakeMap(const proto::ClusterMap& map);
  std::vector<proto::Reclaim> Held();
  Task<void> ReleaseLease(uint64_t epoch, uint64_t lease_id);
  Task<void> GiveInodeUp(uint64_t epoch, Fid fid, uint64_t lease_id);
  Task<void> AwaitTold(const Scope& scope, MetadataQueue::Hurry hurry);
  Task<void> ReturnLease(uint64_t epoch, InodePtr inode, uint64_t lease_id, ScopePtr scope, Learning present,
                         MetadataQueue::Hurry hurry);
  Task<void> ReturnPages(uint64_t epoch, InodePtr inode, uint64_t lease_id, Learning present);

  // --- data of files under WRITE leases of directories (held_data.cc), or of their own (file_leases.cc) ---
  bool IsAloneWith(const Inode& inode) const;
  bool MayTakeData(const Inode& inode) const;
  bool WantsData(Inode& inode, bool* known);
  Task<bool> TakeData(InodePtr inode);
  bool TryTakeData(const InodePtr& inode);
  bool TakeDataLocked(const InodePtr& inode);
  Task<void> GiveDataUp(InodePtr inode);
  Task<std::set<Fid>> GiveDataUpUnder(uint64_t epoch, ScopePtr scope);
  Task<bool> LeaseLateData(uint64_t epoch, InodePtr inode, OneShot<Unit> end);
  Task<StatusOr<uint64_t>> AskForLateLease(uint64_t epoch, InodePtr inode, uint64_t reclaims);
  Task<void> AwaitLateRequests(InodePtr inode, uint64_t lease);
  Task<void> ReturnLateData(uint64_t epoch, InodePtr inode, uint64_t lease, OneShot<Unit> end,
                            Learning present);
  bool WantsFileLease(Inode& inode);
  void ReturnFileLease(const InodePtr& inode);
  void ForgetOwnData(const Fid& fid);

  // --- reading under READ of a file (leased_reads.cc) ---
  bool WantsContentLease(FileHandle& handle);
  Task<void> LeaseContent(HandlePtr handle);

  // --- what write-behind tells the MDS of a file (tell.cc) ---
  enum class Told { kNothing, kOnItsWay, kAsk };
  Told TryPushInline(const InodePtr& inode, OneShot<Status> answer);
  Status EndInline(const InodePtr& inode, const Reply& reply);
  Task<Status> SendInline(InodePtr inode);  // inode->meta held
  bool MayHoldCutsBack() const;
  Task<StatusOr<bool>> TryCutBehind(InodePtr inode);
  Task<Status> TellCut(InodePtr inode);
  Task<Status> SendClosed(InodePtr inode, bool last);
  Task<Status> SendUnsent(InodePtr inode);
  std::vector<InodePtr> TakingPlaces(const EarlyRename& rename, uint32_t flags);
  Task<Status> SendBeforeReplacing(const EarlyRename& rename, uint32_t flags);

  // --- handles (open.cc) ---
  HandlePtr TryOpenLocally(const Caller& caller, Fid fid, int flags);
  Task<StatusOr<HandlePtr>> OpenInside(const Caller& caller, Fid fid, int flags);  // past the gate
  InodePtr KnownFile(Inode& directory, const std::string& name);
  Task<Status> OpenAtMds(const Caller& caller, InodePtr inode, proto::MetadataRequest request);
  void NoteAnswer(FileHandle& handle, uint64_t named, bool opened);
  void DropHandle(const HandlePtr& handle);

  // --- names (create.cc, directory.cc, remove.cc) ---
  Task<StatusOr<Known>> MakeNode(const Caller& caller, Fid parent, std::string name,
                                 proto::MetadataRequest request);
  void NoteScan(FileHandle& directory, FillToken token, uint64_t cookie, const std::vector<DirEntry>& entries,
                bool kept, bool end);
  Task<Status> Remove(const Caller& caller, Fid parent, std::string name, bool directory);
  void DiscardIfGone(const proto::Attr& attr);
  void DiscardData(Inode& inode);

  // --- past the cache into the reader's memory (read_into.cc) ---
  struct ReadIntoJob;
  Task<Status> ReadLane(ReadIntoJob* job);
  Task<Status> ReadSlice(ReadIntoJob* job, size_t begin, size_t end);
  Task<StatusOr<bool>> TryReadSlice(ReadIntoJob* job, size_t begin, size_t end, bool last);
  Task<StatusOr<FileContent>> ContentForReading(InodePtr inode);
  Task<Status> CopyInline(ReadIntoJob* job, size_t begin, size_t end, std::shared_ptr<std::string> bytes);
  Task<StatusOr<bool>> ReadParts(ReadIntoJob* job, size_t begin, size_t end, LayoutPtr layout);
  Task<bool> Replaced(InodePtr inode, const FileContent& content);

  // --- data (read.cc, write.cc, truncate.cc) ---
  Task<StatusOr<ReadResult>> ReadCached(HandlePtr handle, uint64_t offset, size_t size);
  Task<StatusOr<ReadResult>> ReadInCache(HandlePtr handle, uint64_t offset, size_t size);
  Task<StatusOr<ReadResult>> ReadThrough(HandlePtr handle, uint64_t offset, size_t size);
  Task<StatusOr<ReadResult>> ReadLarge(HandlePtr handle, uint64_t offset, size_t size);

  enum class MayGiveUp { kNo, kYes };  // when it is cancelled before it has begun
  struct HeldRange {
    RangeLock::Guard range;
    uint64_t offset = 0;
    bool is_inline = false;
    bool taken = false;  // the file's data is worked on here
    bool outgrowing = false;
  };
  Task<StatusOr<size_t>> WriteSomehow(HandlePtr handle, uint64_t offset, Pieces pieces, size_t size);
  static Task<RangeLock::Guard> LockForWriting(Inode& inode, uint64_t begin, uint64_t end, MayGiveUp may);
  static Task<StatusOr<HeldRange>> LockHeld(InodePtr inode, std::optional<uint64_t> offset, size_t size,
                                            MayGiveUp may);
  Task<StatusOr<std::optional<size_t>>> WriteHeld(HandlePtr handle, std::optional<uint64_t> offset,
                                                  Pieces pieces, size_t size, MayGiveUp may);
  Task<StatusOr<size_t>> WriteDirect(HandlePtr handle, InodePtr inode, LayoutPtr layout, uint64_t offset,
                                     Pieces pieces, size_t size);
  Task<StatusOr<size_t>> WriteCachedObjects(HandlePtr handle, uint64_t offset, Pieces pieces, size_t size);
  Task<Status> WriteChunks(InodePtr inode, LayoutPtr layout, uint64_t offset, Pieces pieces, uint64_t skip,
                           uint64_t size, std::map<OstIndex, uint64_t>* space = nullptr);
  Task<StatusOr<size_t>> WriteThrough(HandlePtr handle, uint64_t offset, Pieces pieces, size_t size,
                                      MayGiveUp may);
  Task<StatusOr<LayoutPtr>> LayoutForWriting(InodePtr inode, bool again, LayoutPtr stale);
  Task<StatusOr<size_t>> AppendThrough(HandlePtr handle, Pieces pieces, size_t size);
  Task<StatusOr<size_t>> AppendOnce(HandlePtr handle, Pieces pieces, size_t size);
  Task<Status> WriteObjectsThrough(InodePtr inode, LayoutPtr layout, uint64_t offset, Pieces pieces,
                                   uint64_t skip, uint64_t size, Pending* sent);
  bool TryTellEarly(const InodePtr& inode, const proto::MetadataRequest& request);
  void PushWrite(const InodePtr& inode, uint64_t change, proto::MetadataRequest request);
  Task<Status> WriteInlineThrough(HandlePtr handle, std::optional<uint64_t> offset, Pieces pieces,
                                  size_t size, RangeLock::Guard* range);
  Task<StatusOr<size_t>> WriteInlineNow(HandlePtr handle, uint64_t offset, Pieces pieces, size_t size);
  Task<void> DropObjects(Fid fid, LayoutPtr layout);
  Task<Status> MoveOutThrough(InodePtr inode);
  void NoteWrite(Inode& inode, const Caller& caller, uint64_t end);
  Task<Status> OpenEmpty(const Caller& caller, InodePtr inode, proto::MetadataRequest request);
  Task<StatusOr<bool>> EmptyAtMds(const Caller& caller, InodePtr inode, proto::MetadataRequest request);
  Task<Status> TellSize(InodePtr inode, LayoutPtr layout, Pending sent, RangeLock::Guard* range = nullptr);
  Status AsLoss(Inode& inode, const LayoutPtr& layout, Status refused);
  Task<StatusOr<bool>> TryTruncateBehind(const Caller& caller, InodePtr inode, const SetAttributes& set,
                                         bool open_for_writing);
  Task<Status> Truncate(const Caller& caller, InodePtr inode, proto::MetadataRequest request);
  Task<StatusOr<bool>> TruncateAtMds(const Caller& caller, InodePtr inode, proto::MetadataRequest request);
  void DropData(Inode& inode, uint64_t begin, uint64_t end);

  // --- files that outgrow the MDT (outgrowing.cc) ---
  bool TryOutgrow(const InodePtr& inode, uint64_t end);
  bool TryPushMoveOut(const InodePtr& inode, std::shared_ptr<Outgrowing> outgrowing);
  Task<Status> MoveOut(InodePtr inode);
  Task<Status> FinishMoveOut(InodePtr inode, MayGiveUp may);
  Task<Status> WriteOutgrown(InodePtr inode, std::map<OstIndex, uint64_t>* space);
  Task<void> EndOutgrowing(InodePtr inode, std::shared_ptr<Outgrowing> outgrowing);
  Task<void> AwaitMovedOut(InodePtr inode, MetadataQueue::Hurry hurry);
  Task<RangeLock::Guard> LockWhole(InodePtr inode, MayGiveUp may);
  Task<AsyncMutex::Guard> LockMeta(InodePtr inode, MetadataQueue::Hurry hurry);

  // --- write-behind (write_behind.cc) ---
  void SendSoon(const InodePtr& inode);
  Task<void> SendOld(Duration age);
  Task<Status> SendFiles(std::vector<InodePtr> files);
  void RelievePressure();
  // Sends what is dirty in the range now, and waits for what is under way there. Errors go to the inode, too.
  Task<Status> SendData(InodePtr inode, uint64_t begin, uint64_t end);
  Task<void> SendFull(InodePtr inode);
  void StartSending(const InodePtr& inode, bool direct);
  void StartSendDirect(const InodePtr& inode);
  Task<void> SendDirect(InodePtr inode);
  Task<Status> SendFlight(InodePtr inode, DataCache::Flight flight);
  Task<Status> SendPending(InodePtr inode);
  Task<Status> SendAll(InodePtr inode);
  Task<Status> SendParts(InodePtr inode);
  Task<Status> SendEverything();
  bool HoldsBack(Inode& inode);
  Task<bool> Hold(InodePtr inode, uint64_t bytes);
  void LetGo(Inode& inode);

  // --- fsync and errors (sync.cc) ---
  Task<Status> SyncFile(InodePtr inode, bool data_only);
  Task<Status> SyncMount();
  Status TakeError(FileHandle& handle);
  Status TakeErrorForSync(FileHandle& handle);
  Status NoteLost(const InodePtr& inode, OstIndex ost);
  Task<void> DropLost(InodePtr inode, bool of_mdt);
  void OnLoss(OstIndex ost, uint64_t losses);
  Task<void> ForgetLostChanges(uint64_t synced);

  // --- space (space.cc) ---
  Task<Status> ChangeSpaceThrough(HandlePtr handle, SpaceChange change);
  Task<Status> ChangeSpace(InodePtr inode, LayoutPtr layout, SpaceChange change, Pending* sent);
  Task<Status> SendToObjects(InodePtr inode, std::vector<proto::ObjectRequest> requests, Pending* sent);

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
  DirtyFiles dirty_;
  MdtRoom room_;
  std::atomic<bool> relieving_{false};
  std::atomic<uint32_t> inline_limit_{0};
  std::atomic<uint64_t> mdt_losses_{0};  // proto::ConnectReply
};

}  // namespace nacre::client
