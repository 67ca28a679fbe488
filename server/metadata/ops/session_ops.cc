#include "server/metadata/ops/session_ops.h"

#include <cerrno>

#include "common/log.h"
#include "rpc/convert.h"

namespace nacre::mds {
namespace {

constexpr uint32_t kProtocolVersion = 1;

Status CheckConnect(const Mds& mds, const proto::Connect& request) {
  if (request.version() != kProtocolVersion) {
    return ErrnoError(EPROTO, absl::StrFormat("the client speaks version %d of the protocol, this server version %d",
                                              request.version(), kProtocolVersion));
  }
  const std::string& uuid = mds.tables->superblock().cluster_uuid;
  if (request.cluster_uuid().empty() || request.cluster_uuid() == uuid) return OkStatus();
  return ErrnoError(EINVAL, absl::StrFormat("the client wants cluster %s, this is cluster %s: check the address",
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

Task<StatusOr<SessionPtr>> Admit(MdsPtr mds, proto::Connect request) {
  co_await mds->sessions.AwaitRecovery();
  CO_ASSIGN_OR_RETURN(SessionId id, co_await mds->ids.NextSession());
  SessionRecord record{request.name(), request.nonce(), request.read_only()};
  co_return mds->sessions.Add(id, std::move(record), mds->env.clock.Now());
}

Status FillConnectReply(Mds& mds, const Session& session, proto::ConnectReply* reply) {
  reply->set_session(session.id);
  reply->set_instance(mds.instance);
  auto lease = std::chrono::duration_cast<std::chrono::milliseconds>(mds.options.session_timeout);
  reply->set_lease_ms(static_cast<uint32_t>(lease.count()));
  reply->set_cluster_uuid(mds.tables->superblock().cluster_uuid);
  *reply->mutable_map() = mds.osts.Map();
  *reply->mutable_default_layout() = ToProto(DefaultTemplate());
  reply->set_inline_limit(mds.options.inline_limit);
  ASSIGN_OR_RETURN(InodePtr root, mds.tables->GetInode(kRootFid));
  *reply->mutable_root() = ToProto(*root);
  return OkStatus();
}

}  // namespace

Task<Reply> Connect(MdsPtr mds, std::shared_ptr<MetadataPeer> peer, proto::Connect request, SessionPtr* session) {
  CO_RETURN_IF_ERROR(CheckConnect(*mds, request));
  SessionPtr found;
  if (request.session() != 0) {
    CO_ASSIGN_OR_RETURN(found, Resume(*mds, request));
  } else {
    CO_ASSIGN_OR_RETURN(found, co_await Admit(mds, request));
    LogInfo("session %d opened: %s at %s", found->id, request.name(), peer->name());
  }
  found->Attach(peer, mds->env.clock.Now());
  proto::MetadataReply reply;
  CO_RETURN_IF_ERROR(FillConnectReply(*mds, *found, reply.mutable_connect()));
  *session = std::move(found);
  co_return reply;
}

Reply KeepAlive(const Op& op, const proto::KeepAlive& request) {
  op.session->Report(request);
  return proto::MetadataReply{};
}

Task<Reply> Reclaim(const Op& op, const proto::Reclaim& request) {
  Mds& mds = *op.mds;
  proto::MetadataReply reply;
  proto::ReclaimReply* out = reply.mutable_reclaim();
  for (const proto::OpenFile& open : request.opens()) {
    const Fid fid = FromProto(open.fid());
    auto inode = mds.tables->GetInode(fid);
    if (absl::IsNotFound(inode.status())) {
      *out->add_lost() = open.fid();
      continue;
    }
    CO_RETURN_IF_ERROR(inode.status());
    mds.opens.Set(op.session->id, fid, open.count(), open.write());
    if (open.count() == 0) CO_RETURN_IF_ERROR(co_await DestroyIfForgotten(op.mds, fid));
  }
  if (!request.last()) co_return reply;
  op.session->set_whole(true);
  co_return reply;
}

Task<Status> EndSession(MdsPtr mds, SessionPtr session) {
  session->set_ended();
  CO_RETURN_IF_ERROR(mds->sessions.Remove(session, KvBatch{}));
  std::vector<Fid> files = mds->opens.FilesOf(session->id);
  mds->opens.DropSession(session->id);
  for (const Fid& fid : files) CO_RETURN_IF_ERROR(co_await DestroyIfForgotten(mds, fid));
  co_return OkStatus();
}

Task<Reply> Disconnect(const Op& op) {
  CO_RETURN_IF_ERROR(co_await EndSession(op.mds, op.session));
  LogInfo("session %d closed: %s", op.session->id, op.session->record.name);
  co_return proto::MetadataReply{};
}

}  // namespace nacre::mds
