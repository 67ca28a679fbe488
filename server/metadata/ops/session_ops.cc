#include "server/metadata/ops/session_ops.h"

#include <cerrno>
#include <set>

#include "common/log.h"
#include "rpc/convert.h"
#include "rpc/versions.h"
#include "server/metadata/directory_leases.h"
#include "server/metadata/eviction.h"
#include "server/metadata/late_data.h"
#include "server/metadata/paths.h"
#include "server/metadata/recall.h"

namespace nacre::mds {
namespace {

// The version that is spoken from now on.
StatusOr<uint32_t> CheckConnect(const Mds& mds, const proto::Connect& request) {
  const VersionRange theirs = RangeOf(request.version(), request.oldest_version(), 0);
  ASSIGN_OR_RETURN(const uint32_t version,
                   CommonVersion(theirs, kClientVersions, "the client", "this server"));
  const std::string& uuid = mds.tables->superblock().cluster_uuid;
  if (request.cluster_uuid().empty() || request.cluster_uuid() == uuid) return version;
  return ErrnoError(EINVAL,
                    absl::StrFormat("the client wants cluster %s, this is cluster %s: check the address",
                                    request.cluster_uuid(), uuid));
}

StatusOr<SessionPtr> Resume(Mds& mds, const proto::Connect& request) {
  SessionPtr session = mds.sessions.Find(request.session());
  if (session == nullptr || session->ended()) {
    return ErrnoError(ESTALE, absl::StrFormat("session %d has ended: open a new one", request.session()));
  }
  if (session->record.nonce != request.nonce()) {
    return ErrnoError(EPERM, absl::StrFormat("session %d belongs to another client (%s)", request.session(),
                                             session->record.name));
  }
  return session;
}

// A client that is started again takes the place of the one before: it says that it is sure that no other
// process has its name (`replaces`; it holds the lock of its mountpoint, daemon/place.h), so nobody need wait
// for what that process held. A name alone says nothing: two clients may have been given the same one, and a
// living one whose stream is down for a moment has unsaved data. It is waited for like any other.
Task<Status> TakeOver(MdsPtr mds, proto::Connect request) {
  if (request.name().empty()) co_return OkStatus();
  for (const SessionPtr& session : mds->sessions.All()) {
    if (session->record.name != request.name() || session->ended()) continue;
    if (!request.replaces()) {
      LogWarning(
          "another client is called %s like session %d: if both live, give one a [client] name of its own",
          request.name(), session->id);
      continue;
    }
    CO_RETURN_IF_ERROR(co_await Evict(mds, session, "its client has been started again", Client::kGone));
  }
  if (mds->Recovering() && mds->sessions.AllWhole()) mds->sessions.recovery().Open();
  co_return OkStatus();
}

Status NobodyThere() { return absl::UnavailableError("the client has given up"); }

Task<StatusOr<SessionPtr>> Admit(MdsPtr mds, std::shared_ptr<MetadataPeer> peer, proto::Connect request) {
  const Connecting::Ended gone = mds->connecting.Watch(peer.get());
  if (mds->sessions.FindByNonce(request.nonce()) == nullptr)
    CO_RETURN_IF_ERROR(co_await TakeOver(mds, request));
  co_await mds->sessions.recovery().Wait();
  AsyncMutex::Guard guard = co_await mds->connecting.LockAdmission();
  // The reply to an earlier attempt was lost: nobody else knows this nonce.
  SessionPtr session = mds->sessions.FindByNonce(request.nonce());
  if (session == nullptr) {
    if (*gone) co_return NobodyThere();
    CO_ASSIGN_OR_RETURN(SessionId id, co_await mds->ids.NextSession());
    SessionRecord record{request.name(), request.nonce(), request.read_only()};
    const Duration now = mds->listening.Now();
    CO_ASSIGN_OR_RETURN(session, co_await mds->sessions.Add(id, std::move(record), now));
    LogInfo("session %d opened: %s at %s", id, request.name(), peer->name());
  }
  if (*gone) co_return NobodyThere();  // a session that is there may have its next stream already
  session->Attach(peer, mds->listening.Now());
  co_return session;
}

Status FillConnectReply(Mds& mds, const Session& session, proto::ConnectReply* reply) {
  reply->set_session(session.id);
  reply->set_instance(mds.instance);
  auto lease = std::chrono::duration_cast<std::chrono::milliseconds>(mds.options.lease);
  reply->set_lease_ms(static_cast<uint32_t>(lease.count()));
  reply->set_cluster_uuid(mds.tables->superblock().cluster_uuid);
  *reply->mutable_map() = mds.osts.Map();
  *reply->mutable_default_layout() = ToProto(DefaultTemplate());
  reply->set_inline_limit(mds.options.inline_limit);
  reply->set_losses(mds.losses);
  ASSIGN_OR_RETURN(InodePtr root, mds.tables->GetInode(kRootFid));
  *reply->mutable_root() = ToProto(*root);
  reply->set_fid_sequence(SessionSequence(session.id));
  reply->set_names_behind(mds.AllowsNamesBehind(session));
  reply->set_promised_bytes(mds.PromisedBytes());
  return OkStatus();
}

Task<Reply> EnterClaims(const Op& op, const proto::Reclaim& request) {
  Mds& mds = *op.mds;
  proto::MetadataReply reply;
  proto::ReclaimReply* out = reply.mutable_reclaim();
  std::vector<OpenTable::Handles> opens;
  for (const proto::OpenFile& open : request.opens()) {
    const Fid fid = FromProto(open.fid());
    auto inode = mds.tables->GetInode(fid);
    if (absl::IsNotFound(inode.status())) {
      *out->add_lost() = open.fid();
      continue;
    }
    CO_RETURN_IF_ERROR(inode.status());
    opens.push_back({fid, open.count(), open.write()});
    if (request.last()) continue;
    mds.opens.Set(op.session->id, opens.back(), op.stream);
    if (open.count() == 0) CO_RETURN_IF_ERROR(co_await DestroyIfForgotten(op.mds, fid));
  }
  for (const proto::LockRange& lock : request.locks()) {
    Status status = mds.file_locks.Reclaim(op.session->id, lock);
    if (status.ok()) continue;
    LogWarning("session %d lost a lock on %s: %s", op.session->id, FromProto(lock.fid()).ToString(),
               std::string(status.message()));
    *out->add_lost() = lock.fid();
  }
  std::set<uint64_t> named;
  for (const proto::Lease& lease : request.leases()) {
    named.insert(lease.id());
    if (lease.id() == 0) {
      if (auto id = RestoreBorn(mds, op.session, FromProto(lease.resource()))) named.insert(*id);
    } else {
      RestoreLease(mds, op.session, lease);
    }
  }
  if (!request.last()) co_return reply;
  mds.NoteReclaim();
  mds.opens.Replace(op.session->id, opens, op.stream);
  mds.leases.EndUnnamed(op.session->id, named);
  op.session->set_whole(true);
  if (mds.Recovering() && mds.sessions.AllWhole()) mds.sessions.recovery().Open();
  co_return reply;
}

}  // namespace

Task<Reply> Connect(MdsPtr mds, std::shared_ptr<MetadataPeer> peer, proto::Connect request) {
  const StatusOr<uint32_t> version = CheckConnect(*mds, request);
  if (!version.ok()) {
    if (mds->connecting.NoteRefused(request.name()))
      LogWarning("%s at %s is refused: %s", request.name(), peer->name(),
                 std::string(version.status().message()));
    co_return version.status();
  }
  mds->connecting.NoteLetIn(request.name());
  SessionPtr session;
  if (request.session() != 0) {
    CO_ASSIGN_OR_RETURN(session, Resume(*mds, request));
    session->Attach(peer, mds->listening.Now());
  } else {
    CO_ASSIGN_OR_RETURN(session, co_await Admit(mds, peer, request));
  }
  proto::MetadataReply reply;
  reply.mutable_connect()->set_version(*version);
  CO_RETURN_IF_ERROR(FillConnectReply(*mds, *session, reply.mutable_connect()));
  co_return reply;
}

Reply KeepAlive(const Op& op, const proto::KeepAlive& request) {
  op.session->Report(request);
  proto::MetadataReply reply;
  reply.mutable_keep_alive()->set_names_behind(op.mds->AllowsNamesBehind(*op.session));
  return reply;
}

// Claims take a while to enter, where there are many. A session that has ended meanwhile has been dropped
// before the last of them was there: nobody would ever take that away.
Task<Reply> Reclaim(const Op& op, const proto::Reclaim& request) {
  Reply reply = co_await EnterClaims(op, request);
  if (!op.session->ended()) co_return reply;
  DropHeld(*op.mds, op.session->id);
  co_return ErrnoError(ESTALE, absl::StrFormat("session %d has ended: connect again", op.session->id));
}

Task<Reply> Disconnect(const Op& op) {
  if (!op.session->TryEnd()) co_return proto::MetadataReply{};
  CO_RETURN_IF_ERROR(co_await EndSession(op.mds, op.session));
  LogInfo("session %d closed: %s", op.session->id, op.session->record.name);
  co_return proto::MetadataReply{};
}

Reply AcquireLease(const Op& op, const proto::AcquireLease& request) {
  proto::MetadataReply reply;
  proto::Lease* lease = reply.mutable_lease()->mutable_lease();
  const Fid resource = FromProto(request.resource());
  if (request.mode() == proto::LEASE_READ) {
    ASSIGN_OR_RETURN(*lease, GrantRead(*op.mds, op.session->id, resource));
  } else if (request.mode() == proto::LEASE_WRITE) {
    ASSIGN_OR_RETURN(*lease, GrantLateData(*op.mds, op.session->id, resource));
  } else {
    return ErrnoError(EINVAL, absl::StrFormat("a lease of mode %d: READ or WRITE", request.mode()));
  }
  if (!op.session->ended()) return reply;
  op.mds->leases.DropSession(op.session->id);  // its end has dropped the others already
  return ErrnoError(ESTALE, absl::StrFormat("session %d has ended", op.session->id));
}

Reply ReleaseLease(const Op& op, const proto::ReleaseLease& request) {
  proto::MetadataReply reply;
  if (request.keep() == proto::LEASE_READ) {
    if (auto kept = KeepReading(*op.mds, op.session, request.id()))
      *reply.add_directory_leases() = kept->ToProto();
    return reply;
  }
  if (request.keep() != proto::LEASE_NONE)
    return ErrnoError(EINVAL, absl::StrFormat("a lease of which %d is kept: READ or NONE", request.keep()));
  op.mds->leases.Release(op.session->id, request.id());
  return reply;
}

Reply ReportProblem(const Op& op, const proto::ReportProblem& request) {
  const Fid fid = FromProto(request.fid());
  std::string problem =
      absl::StrFormat("%s%s: %s (seen by %s)", fid.ToString(), PathRemark(*op.mds->tables, fid),
                      request.message(), op.session->record.name);
  LogWarning("a client reports: %s", problem);
  op.mds->NoteProblem(std::move(problem));
  return proto::MetadataReply{};
}

}  // namespace nacre::mds
