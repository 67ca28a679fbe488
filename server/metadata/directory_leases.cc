#include "server/metadata/directory_leases.h"

#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "rpc/convert.h"
#include "rpc/mutation.h"
#include "server/metadata/recall.h"

namespace nacre::mds {
namespace {

// The directory that the name means, if it does mean one.
Fid DirectoryNamed(Mds& mds, const Fid& parent, const std::string& name) {
  auto entry = mds.tables->FindEntry(parent, name);
  return entry.ok() && entry->type == DT_DIR ? entry->fid : Fid{};
}

// The directory whose lease covers the inode; none if there is no such inode.
Fid CoveringOf(Mds& mds, const Fid& fid) {
  auto inode = mds.tables->GetInode(fid);
  return inode.ok() ? CoveringDirectory(**inode) : Fid{};
}

std::vector<Fid> DirectoriesWanted(Mds& mds, const proto::MetadataRequest& request) {
  std::vector<Fid> wanted;
  if (request.has_lookup() && request.lookup().want_lease()) {
    wanted.push_back(FromProto(request.lookup().parent()));
    wanted.push_back(DirectoryNamed(mds, wanted[0], request.lookup().name()));
  } else if (request.has_getattr() && request.getattr().want_lease()) {
    wanted.push_back(FromProto(request.getattr().fid()));
  } else if (request.has_readdir() && request.readdir().want_lease()) {
    wanted.push_back(FromProto(request.readdir().fid()));
  }
  std::erase(wanted, Fid{});
  return wanted;
}

// The inode that a request names which reads, or opens; none for others.
Fid InodeRead(const proto::MetadataRequest& request) {
  switch (request.op_case()) {
    case proto::MetadataRequest::kLookup:
      return FromProto(request.lookup().parent());
    case proto::MetadataRequest::kReaddir:
      return FromProto(request.readdir().fid());
    case proto::MetadataRequest::kGetattr:
      return FromProto(request.getattr().fid());
    case proto::MetadataRequest::kOpen:
      return FromProto(request.open().fid());
    case proto::MetadataRequest::kReadlink:
      return FromProto(request.readlink().fid());
    case proto::MetadataRequest::kGetXattr:
      return FromProto(request.get_xattr().fid());
    case proto::MetadataRequest::kListXattr:
      return FromProto(request.list_xattr().fid());
    case proto::MetadataRequest::kGetLayout:
      return FromProto(request.get_layout().fid());
    case proto::MetadataRequest::kAcquireLease:
      return FromProto(request.acquire_lease().resource());
    default:
      return {};
  }
}

// Returns the inode that the name refers to; none if there is no such entry.
Fid InodeNamed(Mds& mds, const Fid& parent, const std::string& name) {
  auto entry = mds.tables->FindEntry(parent, name);
  return entry.ok() ? entry->fid : Fid{};
}

bool IsFile(Mds& mds, const Fid& fid) {
  auto inode = mds.tables->GetInode(fid);
  return inode.ok() && !S_ISDIR((*inode)->mode);
}

// Directories that cover what the request reads, and the file itself, of which somebody may have WRITE. Not
// the directory of a file of which the reader has WRITE: whoever has that knows nothing of the file
// (file_leases.h). A listing leaves out what others hold of what is in it (ops/readdir.cc).
std::vector<Fid> InodesRead(Mds& mds, SessionId reader, const proto::MetadataRequest& request) {
  const Fid fid = InodeRead(request);
  std::vector<Fid> read;
  // The asker holds WRITE already, and reads nothing.
  if (request.has_acquire_lease() && request.acquire_lease().mode() == proto::LEASE_WRITE) return read;
  if (request.has_lookup() && request.lookup().name() == "..") {
    auto inode = mds.tables->GetInode(fid);
    read = {fid, inode.ok() ? (*inode)->parent : Fid{}};
  } else if (request.has_lookup()) {
    read = {fid, InodeNamed(mds, fid, request.lookup().name())};
  } else if (request.has_readdir()) {
    read = {fid};
  } else if (auto inode = fid ? mds.tables->GetInode(fid) : absl::NotFoundError("none"); inode.ok()) {
    if (!mds.leases.HoldsWrite(reader, fid)) read = {CoveringDirectory(**inode)};
    if (!S_ISDIR((*inode)->mode)) read.push_back(fid);
  }
  std::erase(read, Fid{});
  return read;
}

// The inodes that the request names by their FIDs.
std::vector<Fid> InodesNamed(Mds& mds, const proto::MetadataRequest& request) {
  if (Fid fid = InodeRead(request)) return {fid};
  std::vector<Fid> named;
  for (const Touched& change : TouchedBy(mds, request)) {
    for (const Fid& fid : {change.directory, change.file})
      if (fid) named.push_back(fid);
  }
  if (Fid fid = ChangedInode(request)) named.push_back(fid);
  return named;
}

// The session to which the FID was given to make something; 0: none, or not one that may have yet to tell of
// it.
SessionId MakerOf(Mds& mds, const Fid& fid) {
  const SessionId maker = SessionOfSequence(fid.sequence);
  return maker != 0 && !mds.tables->GetInode(fid).ok() && mds.sessions.Find(maker) != nullptr ? maker : 0;
}

// The directories whose entries the mutation has changed, and the one that it has made; or the one in which
// it has changed a file.
std::vector<Fid> DirectoriesChanged(Mds& mds, const proto::MetadataRequest& request,
                                    const proto::MetadataReply& reply) {
  switch (request.op_case()) {
    case proto::MetadataRequest::kMknod:
      if (S_ISDIR(request.mknod().mode())) {
        const bool own = request.mknod().has_fid();
        const Fid made = FromProto(own ? request.mknod().fid() : reply.entry().attr().fid());
        return {FromProto(request.mknod().parent()), made};
      }
      return {FromProto(request.mknod().parent())};
    case proto::MetadataRequest::kCreate:
      return {FromProto(request.create().parent())};
    case proto::MetadataRequest::kUnlink:
      return {FromProto(request.unlink().parent())};
    case proto::MetadataRequest::kRename:
      return {FromProto(request.rename().parent()), FromProto(request.rename().new_parent())};
    case proto::MetadataRequest::kLink:
      return {FromProto(request.link().parent())};
    default:
      return {CoveringOf(mds, ChangedInode(request))};
  }
}

// Whether the session may be told wrong things while sessions are waited for that may hold leases.
bool MayMissWriters(const Mds& mds) { return mds.Recovering() && mds.sessions.Count() > 1; }

// A session that has ended while its request waited gets nothing: nobody would give it back.
std::vector<LeaseGrant> UnlessEnded(Mds& mds, const Session& session, std::vector<LeaseGrant> grants) {
  if (!session.ended()) return grants;
  mds.leases.DropSession(session.id);  // its end has dropped the others already
  return {};
}

bool AnyWriter(const Mds& mds, SessionId reader, const std::vector<Fid>& inodes) {
  return std::any_of(inodes.begin(), inodes.end(),
                     [&](const Fid& fid) { return HasWriter(mds, reader, fid); });
}

}  // namespace

bool HasWriter(const Mds& mds, SessionId reader, const Fid& inode) {
  return mds.leases.HasConflict(inode, reader, proto::LEASE_READ);
}

std::vector<LeaseGrant> GrantForReading(Mds& mds, const SessionPtr& session,
                                        const proto::MetadataRequest& request) {
  std::vector<LeaseGrant> grants;
  if (!mds.options.leases || mds.Recovering()) return grants;
  for (const Fid& directory : DirectoriesWanted(mds, request)) {
    auto inode = mds.tables->GetInode(directory);
    if (!inode.ok() || !S_ISDIR((*inode)->mode)) continue;
    auto grant = mds.leases.TryGrantRead(session->id, directory, mds.env.clock.Now());
    if (grant) grants.push_back(*std::move(grant));
  }
  const Fid opened = request.has_open() && request.want_lease() ? FromProto(request.open().fid()) : Fid{};
  if (const Fid directory = opened ? CoveringOf(mds, opened) : Fid{}) {
    auto grant = mds.leases.TryGrantWrite(session->id, directory, mds.env.clock.Now());
    if (grant) grants.push_back(*std::move(grant));
  }
  return UnlessEnded(mds, *session, std::move(grants));
}

std::optional<LeaseGrant> GrantBorn(Mds& mds, const SessionPtr& session,
                                    const proto::MetadataRequest& request) {
  const proto::Mknod& mknod = request.mknod();
  if (!request.want_lease() || !S_ISDIR(mknod.mode()) || !mknod.has_fid()) return std::nullopt;
  const Fid fid = FromProto(mknod.fid());
  if (!mds.options.leases || mds.Recovering() || SessionOfSequence(fid.sequence) != session->id)
    return std::nullopt;
  return mds.leases.TryGrantWrite(session->id, fid, mds.env.clock.Now());
}

void EndBorn(Mds& mds, const LeaseGrant& grant) { mds.leases.Release(grant.session, grant.id); }

std::optional<uint64_t> RestoreBorn(Mds& mds, const SessionPtr& session, const Fid& directory) {
  if (!mds.options.leases || SessionOfSequence(directory.sequence) != session->id) return std::nullopt;
  for (const LeaseGrant& grant : mds.leases.HoldersOf(directory)) {
    if (grant.session != session->id) return std::nullopt;
    if (grant.revoking) PushRevoke(mds, *session, grant.id, directory);  // what said so may be lost
    return grant.id;
  }
  return mds.leases.Grant(session->id, directory, proto::LEASE_WRITE).id;
}

std::vector<LeaseGrant> GrantForChanging(Mds& mds, const SessionPtr& session,
                                         const proto::MetadataRequest& request,
                                         const proto::MetadataReply& reply, const ChangeGuard& guard) {
  std::vector<LeaseGrant> grants;
  const bool failed = reply.status().error() != 0;
  if (!request.want_lease() || failed || !mds.options.leases || mds.Recovering()) return grants;
  for (const Fid& directory : DirectoriesChanged(mds, request, reply)) {
    if (!directory || !guard.Has(directory)) continue;
    auto grant = mds.leases.TryGrantWrite(session->id, directory, mds.env.clock.Now(), /*changing=*/true);
    if (grant) grants.push_back(*std::move(grant));
  }
  return UnlessEnded(mds, *session, std::move(grants));
}

std::optional<LeaseGrant> KeepReading(Mds& mds, const SessionPtr& session, uint64_t lease) {
  const auto kept = mds.leases.TryKeepRead(session->id, lease, mds.env.clock.Now());
  return kept && !UnlessEnded(mds, *session, {*kept}).empty() ? kept : std::nullopt;
}

void SayWhetherAlone(Mds& mds, SessionId session, const proto::MetadataRequest& request, bool beside_others,
                     proto::MetadataReply* reply) {
  if (reply->status().error() != 0) return;
  const bool entry = request.has_open() || request.has_create();
  if (!entry && !request.has_update_size() && !request.has_write_inline() && !request.has_setattr()) return;
  const Fid file = entry ? FromProto(reply->entry().attr().fid()) : ChangedInode(request);
  if (beside_others || (request.update_size().beside() && HasWriter(mds, session, file)))
    reply->mutable_attr()->mutable_attr()->clear_parent();
  uint64_t lease = mds.leases.GoodWrite(session, file);
  if (lease == 0) lease = mds.leases.GoodWrite(session, CoveringOf(mds, file));
  if (lease == 0 || !mds.opens.IsSoleWriter(session, file)) return;
  if (mds.leases.HasConflict(file, session, proto::LEASE_WRITE)) return;
  if (entry)
    reply->mutable_entry()->set_alone_under(lease);
  else
    reply->mutable_attr()->set_alone_under(lease);
}

bool NeedsWriters(Mds& mds, SessionId reader, const proto::MetadataRequest& request) {
  if (mds.options.plant_overlooked) return false;
  const std::vector<Fid> read = InodesRead(mds, reader, request);
  return !read.empty() && (MayMissWriters(mds) || AnyWriter(mds, reader, read));
}

// The request is resolved again after each wait: it may read from other directories by then.
Task<Status> AwaitWriters(MdsPtr mds, SessionId reader, const proto::MetadataRequest& request) {
  if (MayMissWriters(*mds)) {
    std::optional<Session::Wait> wait;
    if (SessionPtr session = mds->sessions.Find(reader)) wait.emplace(std::move(session));
    co_await mds->sessions.recovery().Wait();
  }
  for (;;) {
    std::vector<Fid> read = InodesRead(*mds, reader, request);
    if (!AnyWriter(*mds, reader, read)) co_return OkStatus();
    for (const Fid& inode : read) {
      if (HasWriter(*mds, reader, inode))
        mds->leases.GrantNoneUntil(inode, proto::LEASE_WRITE,
                                   mds->peace.BeginsAt(mds->env.clock.Now(), inode));
    }
    CO_RETURN_IF_ERROR(co_await RecallAll(mds, reader, std::move(read), proto::LEASE_READ));
  }
}

Task<Status> AwaitWritersOf(MdsPtr mds, SessionId opener, Fid file) {
  proto::MetadataRequest look;
  *look.mutable_getattr()->mutable_fid() = ToProto(file);
  if (NeedsWriters(*mds, opener, look)) co_return co_await AwaitWriters(mds, opener, look);
  co_return OkStatus();
}

bool NamesUntold(Mds& mds, SessionId asker, const proto::MetadataRequest& request) {
  const std::vector<Fid> named = InodesNamed(mds, request);
  return std::any_of(named.begin(), named.end(), [&](const Fid& fid) {
    const SessionId maker = MakerOf(mds, fid);
    return maker != 0 && maker != asker;
  });
}

// Where it has been made is not known: all that the session holds WRITE of.
Task<Status> AwaitMakers(MdsPtr mds, SessionId asker, const proto::MetadataRequest& request) {
  co_await mds->sessions.recovery().Wait();
  for (const Fid& fid : InodesNamed(*mds, request)) {
    const SessionId maker = MakerOf(*mds, fid);
    if (maker == 0 || maker == asker) continue;
    std::vector<Fid> written = mds->leases.WrittenBy(maker);
    std::erase_if(written, [&](const Fid& inode) { return IsFile(*mds, inode); });
    CO_RETURN_IF_ERROR(co_await RecallAll(mds, asker, std::move(written), proto::LEASE_READ));
  }
  co_return OkStatus();
}

}  // namespace nacre::mds
