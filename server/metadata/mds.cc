#include "server/metadata/mds.h"

#include <absl/strings/escaping.h>
#include <dirent.h>
#include <sys/stat.h>

#include <cerrno>

#include "common/log.h"
#include "rpc/convert.h"
#include "server/metadata/directory_leases.h"

namespace nacre::mds {
namespace {

constexpr size_t kXattrsAtOnce = 256;
constexpr uint64_t kAmpleBytes = 64 << 20;  // beyond the reserve; what clients hold behind is far less

cluster::RegistryOptions RegistryOptionsFor(const MetadataOptions& options, const Tables& tables,
                                            uint64_t instance) {
  return {tables.superblock().cluster_uuid, options.heartbeat, options.plant_patient_fence, options.epoch,
          instance};
}

// Another link takes the place of the primary one.
Status PromoteLink(Mds& mds, Transaction* transaction, Inode* inode) {
  std::string prefix = FidKey(Table::kReverseLink, inode->fid);
  ASSIGN_OR_RETURN(auto links, mds.tables->Scan(prefix, PrefixEnd(prefix), 1));
  if (links.empty()) {
    return absl::DataLossError(
        absl::StrFormat("inode %s has %d links but no reverse link record: run nacre doctor",
                        inode->fid.ToString(), inode->nlink));
  }
  ByteReader key(std::string_view(links[0].key).substr(prefix.size()));
  inode->parent = key.ReadFid();
  inode->parent_cookie = key.Big<uint64_t>();
  transaction->batch().Erase(std::move(links[0].key));
  return OkStatus();
}

}  // namespace

Mds::Mds(MetadataEnvironment environment, MetadataOptions options, std::unique_ptr<Tables> opened)
    : env(environment),
      options(options),
      tables(std::move(opened)),
      instance(environment.random.Next() | 1),
      started(environment.clock.Now()),
      listening(environment.clock, environment.authority, options.heartbeat),
      ids(*tables),
      leases(instance >> 1, &env.clock),
      peace(options.peace),
      sessions(*tables),
      osts(environment.store, environment.clock, environment.transport,
           RegistryOptionsFor(options, *tables, instance)),
      chooser(environment.random) {
  if (options.plant_unlocked) locks.PlantUnlocked();
}

bool Mds::MayBeRepeating() const {
  constexpr Duration kGrace = std::chrono::seconds(30);
  const Duration reclaimed = reclaimed_.load();
  return reclaimed != Duration::min() && env.clock.Now() - reclaimed < kGrace;
}

bool Mds::NoteProblem(std::string problem) {
  constexpr size_t kKept = 100;
  std::lock_guard lock(problems_mutex_);
  if (std::find(problems_.begin(), problems_.end(), problem) != problems_.end()) return false;
  problems_.push_back(std::move(problem));
  if (problems_.size() > kKept) problems_.pop_front();
  return true;
}

void Mds::NoteDamage(const Status& status) {
  std::string text(status.message());
  if (NoteProblem(text)) LogError("%s", text);
}

// Asked with each answer to what was done behind, so the store is not.
uint64_t Mds::FreeBytes() {
  constexpr Duration kGood = std::chrono::milliseconds(50);
  const Duration now = env.clock.Now();
  if (now < free_until_.load()) return free_.load();
  free_.store(env.store.GetSpace().free_bytes);
  free_until_.store(now + kGood);
  return free_.load();
}

bool Mds::AllowsNamesBehind(const Session& session) {
  return !session.record.read_only && FreeBytes() >= kAmpleBytes && leases.HasAmpleRoom(session.id) &&
         !osts.Usable()->empty();
}

uint64_t Mds::PromisedBytes() {
  const uint64_t room = FreeBytes() / 2;
  const uint64_t share = room / std::max<uint64_t>(sessions.Count(), 1);
  return room >= options.promised_bytes ? std::min(share, options.promised_bytes) : 0;
}

std::vector<std::string> Mds::Problems() const {
  std::lock_guard lock(problems_mutex_);
  return {problems_.begin(), problems_.end()};
}

Status Op::CheckCommit(const Transaction& transaction) const {
  if (session->ended()) return ErrnoError(ESTALE, absl::StrFormat("session %d has ended", session->id));
  if (guard == nullptr || guard->CoversAll(transaction)) return OkStatus();
  return absl::AbortedError("what is changed is not covered");
}

Status Op::CheckTold(const Fid& file) const {
  if (guard == nullptr || !HasWriter(*mds, session->id, file) || guard->CoversFile(file)) return OkStatus();
  return absl::AbortedError("somebody may have changed the file without having told it");
}

Task<Status> Op::Commit(Transaction* transaction, const proto::MetadataReply& reply) const {
  CO_RETURN_IF_ERROR(CheckCommit(*transaction));
  if (behind) transaction->batch().UseReserve();
  if (request.sequence() != 0) session->Record(request.sequence(), reply, &transaction->batch());
  if (placed) transaction->batch().TellPlace(*placed);
  co_return co_await mds->tables->Commit(transaction, Tables::For::kClient);
}

// A repeated removal finds in its recorded reply which file is kept open for its sender.
bool Op::TellsAttributes() const {
  if (!request.change_only()) return true;
  switch (request.op_case()) {
    case proto::MetadataRequest::kMknod:
    case proto::MetadataRequest::kLink:
    case proto::MetadataRequest::kSetattr:
    case proto::MetadataRequest::kUpdateSize:
    case proto::MetadataRequest::kWriteInline:
      return false;
    case proto::MetadataRequest::kUnlink:
      return request.unlink().keep_open();
    case proto::MetadataRequest::kRename:
      return request.rename().keep_open();
    default:
      return true;
  }
}

proto::Attr Op::AttrOf(const Inode& inode) const {
  if (TellsAttributes()) return ToProto(inode);
  proto::Attr attr;
  attr.set_change(inode.change);
  return attr;
}

Task<Status> Op::CommitIntent(Transaction* transaction) const {
  CO_RETURN_IF_ERROR(CheckCommit(*transaction));
  Status committed = co_await mds->tables->Commit(transaction);
  if (guard != nullptr) guard->Unpin();
  co_return committed;
}

void KeepPromise(const Op& op, const Inode& inode, bool promised, Transaction* transaction,
                 proto::AttrReply* reply) {
  const LeaseTable& leases = op.mds->leases;
  const SessionId session = op.session->id;
  reply->set_promised_bytes(op.mds->PromisedBytes());
  const bool holds =
      leases.HoldsWrite(session, CoveringDirectory(inode)) || leases.HoldsWrite(session, inode.fid);
  if (promised && holds) transaction->batch().UseReserve();
}

Task<FidLocks::Guard> LockOne(Mds& mds, Fid fid) {
  std::vector<Fid> fids(1, fid);
  co_return co_await mds.locks.Lock(std::move(fids));
}

Task<FidLocks::Guard> LockEntry(Mds& mds, Fid parent, std::string name) {
  while (true) {
    auto before = mds.tables->FindEntry(parent, name);
    std::vector<Fid> fids(1, parent);
    if (before.ok()) fids.push_back(before->fid);
    FidLocks::Guard guard = co_await mds.locks.Lock(std::move(fids));
    auto after = mds.tables->FindEntry(parent, name);
    if (!after.ok() || guard.Holds(after->fid)) co_return guard;
  }
}

Status CheckName(std::string_view name) {
  if (name.empty() || name == "." || name == "..") {
    return ErrnoError(EINVAL, absl::StrFormat("\"%s\" cannot be the name of an entry", name));
  }
  if (name.size() > kMaxName) {
    return ErrnoError(ENAMETOOLONG,
                      absl::StrFormat("a name of %d bytes: at most %d are allowed", name.size(), kMaxName));
  }
  if (name.find('/') != name.npos || name.find('\0') != name.npos) {
    return ErrnoError(EINVAL, absl::StrFormat("the name \"%s\" has a slash or a NUL in it",
                                              absl::CHexEscape(AbslView(name))));
  }
  return OkStatus();
}

Status CheckDirectory(const Inode& inode) {
  if (S_ISDIR(inode.mode)) return OkStatus();
  return ErrnoError(ENOTDIR,
                    absl::StrFormat("%s is no directory: mode %o", inode.fid.ToString(), inode.mode));
}

Status CheckLinked(const Inode& directory) {
  if (directory.nlink > 0) return OkStatus();
  return ErrnoError(ENOENT, absl::StrFormat("directory %s has been removed", directory.fid.ToString()));
}

StatusOr<InodePtr> GetDirectory(Mds& mds, const Fid& fid) {
  ASSIGN_OR_RETURN(InodePtr inode, mds.tables->GetInode(fid));
  RETURN_IF_ERROR(CheckDirectory(*inode));
  return inode;
}

void TouchChanged(Inode* inode, WallTime now) { inode->ctime = now; }

void TouchModified(Inode* inode, WallTime now) { inode->mtime = inode->ctime = now; }

void TouchWritten(Inode* inode, WallTime when) {
  const bool set_into_the_future = inode->mtime > inode->ctime;
  inode->mtime = set_into_the_future ? when : std::max(inode->mtime, when);
  inode->ctime = std::max(inode->ctime, when);
}

uint8_t DirType(uint32_t mode) { return static_cast<uint8_t>(IFTODT(mode)); }

Status FillLayout(Mds& mds, const InodePtr& inode, proto::Layout* layout, std::string* data) {
  *layout = ToProto(inode->layout);
  if (!inode->inline_data || inode->size == 0) return OkStatus();
  auto body = mds.tables->Get(FidKey(Table::kBody, inode->fid));
  if (absl::IsNotFound(body.status())) {
    data->clear();
  } else {
    RETURN_IF_ERROR(body.status());
    *data = *std::move(body);
  }
  data->resize(inode->size, '\0');
  return OkStatus();
}

StatusOr<LayoutTemplate> TemplateFor(Mds& mds, const Inode& directory, bool* inherited) {
  *inherited = directory.default_layout.empty();
  if (!*inherited) return directory.default_layout;
  Fid fid = directory.fid;
  Fid parent = directory.parent;
  for (int depth = 0; depth < kMaxDepth && parent && parent != fid; ++depth) {
    auto inode = mds.tables->GetInode(parent);
    if (absl::IsNotFound(inode.status())) break;  // of a removed directory
    RETURN_IF_ERROR(inode.status());
    if (!(*inode)->default_layout.empty()) return (*inode)->default_layout;
    fid = parent;
    parent = (*inode)->parent;
  }
  return DefaultTemplate();
}

void RaiseGeneration(const Mds& mds, Layout* layout) {
  constexpr int kBitsWithin = 20;  // raises of one file between two losses that are told apart for sure
  const uint32_t first = static_cast<uint32_t>(mds.losses) << kBitsWithin;
  layout->generation = std::max(layout->generation + 1, first);
}

void QueueDestroy(const Inode& inode, KvBatch* batch) {
  if (S_ISREG(inode.mode) && !inode.inline_data) QueueDestroy(inode.layout, batch);
}

Status Destroy(Mds& mds, Transaction* transaction, Inode* inode) {
  QueueDestroy(*inode, &transaction->batch());
  if (inode->inline_data || S_ISLNK(inode->mode))
    transaction->batch().Erase(FidKey(Table::kBody, inode->fid));
  if (S_ISREG(inode->mode) && !inode->inline_data) {
    transaction->batch().Erase(FidKey(Table::kTruncate, inode->fid));
    RETURN_IF_ERROR(DropTail(mds, inode->fid, &transaction->batch()));
  }
  auto erase = [transaction](KvEntry& xattr) -> Status {
    transaction->batch().Erase(std::move(xattr.key));
    return OkStatus();
  };
  if (inode->xattrs > 0)
    RETURN_IF_ERROR(ForEachEntry(*mds.tables, FidKey(Table::kXattr, inode->fid), erase, kXattrsAtOnce));
  transaction->Erase(inode);
  return OkStatus();
}

Status DropLink(Mds& mds, Transaction* transaction, Inode* inode, const Fid& parent, uint64_t cookie,
                bool keep, WallTime now) {
  transaction->Dirty(inode);
  TouchChanged(inode, now);
  inode->nlink = S_ISDIR(inode->mode) ? 0 : inode->nlink - 1;
  bool primary = inode->parent == parent && inode->parent_cookie == cookie;
  if (inode->nlink > 0) {
    if (primary) return PromoteLink(mds, transaction, inode);
    transaction->batch().Erase(ReverseLinkKey(inode->fid, parent, cookie));
    return OkStatus();
  }
  inode->parent = {};
  inode->parent_cookie = 0;
  if (!keep && !mds.MayBeOpen(inode->fid)) return Destroy(mds, transaction, inode);
  transaction->batch().Put(FidKey(Table::kOrphan, inode->fid), {});
  return OkStatus();
}

Task<Status> DestroyIfForgotten(MdsPtr mds, Fid fid) {
  if (mds->MayBeOpen(fid)) co_return OkStatus();
  auto peek = mds->tables->GetInode(fid);
  if (absl::IsNotFound(peek.status())) co_return OkStatus();
  CO_RETURN_IF_ERROR(peek.status());
  if ((*peek)->nlink > 0) co_return OkStatus();
  FidLocks::Guard guard = co_await LockOne(*mds, fid);
  if (mds->MayBeOpen(fid)) co_return OkStatus();
  Transaction transaction(*mds->tables);
  auto inode = transaction.Load(fid);
  if (absl::IsNotFound(inode.status())) co_return OkStatus();
  CO_RETURN_IF_ERROR(inode.status());
  CO_RETURN_IF_ERROR(Destroy(*mds, &transaction, *inode));
  transaction.batch().Erase(FidKey(Table::kOrphan, fid));
  co_return co_await mds->tables->Commit(&transaction);
}

Task<void> SweepOrphans(MdsPtr mds) {
  KvPages<Tables> pages(*mds->tables, TableKey(Table::kOrphan));
  while (pages.more() && !mds->closed) {
    auto orphans = pages.Next();
    if (!orphans.ok()) {
      LogError("the orphans cannot be read: %s", std::string(orphans.status().message()));
      co_return;
    }
    for (const KvEntry& orphan : *orphans) {
      ByteReader key(std::string_view(orphan.key).substr(1));
      const Fid fid = key.ReadFid();
      Status removed = co_await DestroyIfForgotten(mds, fid);
      if (!removed.ok() && !mds->closed)
        LogError("removing orphan %s failed: %s", fid.ToString(), std::string(removed.message()));
    }
  }
}

}  // namespace nacre::mds
