// Everything that an operation of the MDS works on, and the context of one request.
//
// Mds is shared by all requests and background tasks; each part is thread-safe by itself. It outlives the
// MetadataServer as long as a coroutine still runs; after Close nothing reaches the store or the network any
// more.
//
// Locking: operations take `locks` of the inodes that they change (a directory for its entries), in one go.
// Operations that also need `data_locks` (they wait for OSTs: truncation.h, move_out.h, tails.h) take those
// first.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <string>

#include "server/cluster/ost_choice.h"
#include "server/cluster/ost_registry.h"
#include "server/metadata/change_guard.h"
#include "server/metadata/connecting.h"
#include "server/metadata/destroyer.h"
#include "server/metadata/drainer.h"
#include "server/metadata/fid_locks.h"
#include "server/metadata/id_allocator.h"
#include "server/metadata/layout.h"
#include "server/metadata/lease_table.h"
#include "server/metadata/listening_clock.h"
#include "server/metadata/lock_table.h"
#include "server/metadata/message_counts.h"
#include "server/metadata/metadata_server.h"
#include "server/metadata/migration_jobs.h"
#include "server/metadata/open_table.h"
#include "server/metadata/peace.h"
#include "server/metadata/permission.h"
#include "server/metadata/rebalancer.h"
#include "server/metadata/recall_waits.h"
#include "server/metadata/session_table.h"
#include "server/metadata/tables.h"
#include "server/metadata/tails.h"
#include "server/metadata/writer_recovery.h"

namespace nacre::mds {

using Reply = StatusOr<proto::MetadataReply>;

struct Mds {
  Mds(MetadataEnvironment environment, MetadataOptions options, std::unique_ptr<Tables> tables);

  MetadataEnvironment env;
  const MetadataOptions options;
  const std::unique_ptr<Tables> tables;
  const uint64_t instance;  // of this process
  const Duration started;
  ListeningClock listening;
  uint64_t losses =
      0;  // how often the MDT may have lost what had been answered and not synced; set at the start
  FidLocks locks;
  FidLocks data_locks;
  FidLocks migration_locks;  // of files that are being migrated (migration.h); taken before all others
  IdAllocator ids;
  Tails tails;
  OpenTable opens;
  LockTable file_locks;
  LeaseTable leases;
  RecallWaits recall_waits;
  Peace peace;
  SessionTable sessions;
  Connecting connecting;
  cluster::OstRegistry osts;
  cluster::OstChooser chooser;
  Destroyer destroyer;
  WriterRecovery writer_recovery;
  MigrationJobs migrations;
  Drainer drainer;
  Rebalancer rebalancer;
  MessageCounts messages;
  std::atomic<bool> closed{false};

  // How many bytes each session may hold back (proto/metadata.proto, AttrReply): half of what is free has
  // room for all of them, so sessions that come do no harm before the others have been told. 0 when the MDT
  // is nearly full.
  uint64_t PromisedBytes();

  // For nacre status: the newest few are kept. false: it is known already.
  bool NoteProblem(std::string problem);
  // A request met EIO, for one because the MDT cannot be read in a place: also logged, once.
  void NoteDamage(const Status& status);
  std::vector<std::string> Problems() const;

  // A client came back and repeats now what was unanswered. Until it is through (a while after the last one
  // came), a file without links may be one that it keeps open.
  void NoteReclaim() { reclaimed_.store(env.clock.Now()); }
  bool MayBeRepeating() const;

  bool Recovering() const { return sessions.recovery().closed(); }
  // Whether the session may answer changes of names before we do (proto/metadata.proto, BatchReply).
  bool AllowsNamesBehind(const Session& session);
  // Whether somebody may have it open: whom the MDS knows of, or who has not come back yet after a restart.
  bool MayBeOpen(const Fid& fid) const { return opens.IsOpen(fid) || Recovering(); }

 private:
  uint64_t FreeBytes();  // of the store, as of just now

  mutable std::mutex problems_mutex_;
  std::deque<std::string> problems_;
  std::atomic<Duration> reclaimed_{Duration::min()};
  std::atomic<uint64_t> free_{0};
  std::atomic<Duration> free_until_{Duration(0)};
};

using MdsPtr = std::shared_ptr<Mds>;

// One request. Lives in the frame of MetadataServer::Handle.
struct Op {
  MdsPtr mds;
  SessionPtr session;
  const proto::MetadataRequest& request;
  Caller caller;
  WallTime now;                  // when it happens, for the times that it sets
  bool behind = false;           // an application has its answer already: it may use the reserve of space
  uint64_t stream = 0;           // the number of the session's stream that it came by
  ChangeGuard* guard = nullptr;  // of a mutation
  std::optional<OneShot<Unit>> placed;  // set when Commit has its place in the store (KvBatch::TellPlace)
  mutable std::shared_ptr<const cluster::UsableOsts> usable;  // what it has chosen from

  // The OSTs to choose from; good as long as this, or until it is called again.
  const cluster::UsableOsts& Usable() const { return *(usable = mds->osts.Usable()); }

  // Commits the transaction with the reply recorded in the same batch. ABORTED if it changes what the guard
  // does not cover: nothing is committed, the operation is begun again (metadata_server.cc).
  Task<Status> Commit(Transaction* transaction, const proto::MetadataReply& reply) const;
  // Commits the first step of a change that takes two: the reply is recorded with the second.
  Task<Status> CommitIntent(Transaction* transaction) const;

  // Whether the reply has to tell all attributes of what the mutation changes (MetadataRequest.change_only).
  bool TellsAttributes() const;
  // Those of what it is about, for the reply.
  proto::Attr AttrOf(const Inode& inode) const;

  // Before a mutation answers with attributes of a file that it finds: ABORTED if another session may have
  // changed it and not told; then the guard lacks it, and the mutation begins again.
  Status CheckTold(const Fid& file) const;

 private:
  Status CheckCommit(const Transaction& transaction) const;
};

// For what the holder of a WRITE lease has held back of the file: uses the room that was promised for it.
// Tells the session what there is from now on.
void KeepPromise(const Op& op, const Inode& inode, bool promised, Transaction* transaction,
                 proto::AttrReply* reply);

// Locks.
Task<FidLocks::Guard> LockOne(Mds& mds, Fid fid);
// The directory and what the name means in it (if anything), at the same time.
Task<FidLocks::Guard> LockEntry(Mds& mds, Fid parent, std::string name);

// Names and FIDs as they come in.
Status CheckName(std::string_view name);  // EINVAL, ENAMETOOLONG; "." and ".." are refused with EINVAL
StatusOr<InodePtr> GetDirectory(Mds& mds, const Fid& fid);  // ENOTDIR
Status CheckDirectory(const Inode& inode);                  // ENOTDIR
Status CheckLinked(const Inode& directory);                 // ENOENT in a directory that has been removed

// Small steps that several operations share.
void TouchChanged(Inode* inode, WallTime now);   // ctime
void TouchModified(Inode* inode, WallTime now);  // mtime and ctime
// As TouchModified, for a change made at `when` by the clock of a client, which may be behind that of
// another, and which later changes may have overtaken on the way here: neither time goes back, unless
// somebody has set mtime into the future.
void TouchWritten(Inode* inode, WallTime when);
uint8_t DirType(uint32_t mode);
// Layout and inline data where asked for.
Status FillLayout(Mds& mds, const InodePtr& inode, proto::Layout* layout, std::string* data);
// The template for what is made in this directory: its own, its ancestors', the filesystem's.
StatusOr<LayoutTemplate> TemplateFor(Mds& mds, const Inode& directory, bool* inherited);
// Gives the layout a generation that the file has never had: one that a loss of power has taken is none of
// those that follow, for clients may still write by it.
void RaiseGeneration(const Mds& mds, Layout* layout);
// Queues a file's objects for destruction.
void QueueDestroy(const Inode& inode, KvBatch* batch);
// Takes one link away: the inode goes, becomes an orphan, or stays with its other links. `parent` and
// `cookie` name the link.
Status DropLink(Mds& mds, Transaction* transaction, Inode* inode, const Fid& parent, uint64_t cookie,
                bool keep, WallTime now);
// Removes what an inode without links still holds.
Status Destroy(Mds& mds, Transaction* transaction, Inode* inode);
// Ends an orphan that nobody has open any more. Does nothing to others.
Task<Status> DestroyIfForgotten(MdsPtr mds, Fid fid);
// The same for all orphans. Failures are logged, and their orphans left for the next sweep.
Task<void> SweepOrphans(MdsPtr mds);

}  // namespace nacre::mds
