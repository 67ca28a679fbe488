#include "rpc/mds_front.h"

#include <absl/strings/str_format.h>

#include <cerrno>

#include "rpc/convert.h"
#include "rpc/mutation.h"
#include "rpc/withheld_peer.h"

namespace nacre {

MdsFront::MdsFront(std::string name, std::function<std::string()> primary)
    : name_(std::move(name)), primary_(std::move(primary)), peers_(std::make_shared<WithheldPeers>()) {}

MdsFront::~MdsFront() = default;

void MdsFront::Serve(MetadataHandler& metadata, ClusterHandler& cluster, BackupHandler& backup,
                     std::shared_ptr<Authority> authority) {
  owned_.reset(new Served{metadata, cluster, backup, std::move(authority)});
  served_.store(owned_.get());
}

Status MdsFront::Refusal() const {
  const std::string primary = primary_();
  const std::string where =
      primary.empty() ? "it is not known to it which one is" : "the primary is at " + primary;
  return ErrnoError(ENOTCONN, absl::StrFormat("MDS %s is not the primary: %s", name_, where));
}

Task<Status> MdsFront::AwaitTurn() {
  const Served* served = served_.load();
  if (served == nullptr) co_return Refusal();
  while (!served->authority->MayServe()) {
    Status status = co_await served->authority->AwaitAuthority();
    if (status.ok()) continue;
    co_return ErrnoError(
        ENOTCONN, absl::StrFormat("MDS %s is the primary no more: %s", name_, std::string(status.message())));
  }
  co_return OkStatus();
}

// Behind what is kept: while that is waited for the authority may lapse, and what is changed meanwhile does
// not matter.
Task<Status> MdsFront::AwaitLeave() {
  OneShot<bool> kept;
  served_.load()->authority->WhenKept([kept](bool yes) { kept.Set(yes); });
  const bool yes = co_await kept.Wait();
  if (!yes) co_return ErrnoError(ENOTCONN, absl::StrFormat("MDS %s is the primary no more", name_));
  co_return co_await AwaitTurn();
}

std::shared_ptr<MetadataPeer> MdsFront::Withheld(const std::shared_ptr<MetadataPeer>& peer) {
  return peers_->Of(peer, served_.load()->authority);
}

Task<proto::MetadataReply> MdsFront::Handle(std::shared_ptr<MetadataPeer> peer,
                                            proto::MetadataRequest request) {
  const bool connects = request.has_connect();
  const bool early = plant_early_reads_ && !IsMutation(request) && !request.has_batch();
  proto::MetadataReply reply;
  Status status = co_await AwaitTurn();
  if (status.ok()) {
    std::shared_ptr<MetadataPeer> withheld = Withheld(peer);
    reply = co_await served_.load()->metadata.Handle(std::move(withheld), std::move(request));
    if (!early) status = co_await AwaitLeave();
  }
  if (status.ok()) co_return reply;
  if (!connects) peer->Close();  // before the answer, which goes nowhere then
  proto::MetadataReply refused;
  *refused.mutable_status() = ToProto(status);
  co_return refused;
}

void MdsFront::Disconnected(std::shared_ptr<MetadataPeer> peer) {
  if (const Served* served = served_.load()) served->metadata.Disconnected(Withheld(peer));
}

template <typename Reply, typename... Request>
Task<Reply> MdsFront::Pass(Task<Reply> (ClusterHandler::*method)(Request...), Request... request) {
  Reply reply;
  Status status = co_await AwaitTurn();
  if (status.ok()) {
    ClusterHandler& cluster = served_.load()->cluster;
    reply = co_await (cluster.*method)(std::move(request)...);
    status = co_await AwaitLeave();
  }
  if (status.ok()) co_return reply;
  Reply refused;
  *refused.mutable_status() = ToProto(status);
  co_return refused;
}

Task<proto::RegisterOssReply> MdsFront::RegisterOss(proto::RegisterOssRequest request) {
  return Pass(&ClusterHandler::RegisterOss, std::move(request));
}

Task<proto::HeartbeatReply> MdsFront::Heartbeat(proto::HeartbeatRequest request) {
  return Pass(&ClusterHandler::Heartbeat, std::move(request));
}

Task<proto::ReportChainReply> MdsFront::ReportChain(proto::ReportChainRequest request) {
  return Pass(&ClusterHandler::ReportChain, std::move(request));
}

Task<proto::ClusterStatus> MdsFront::GetStatus() { return Pass(&ClusterHandler::GetStatus); }

Task<proto::AdminReply> MdsFront::Administer(proto::AdminRequest request) {
  return Pass(&ClusterHandler::Administer, std::move(request));
}

StatusOr<std::unique_ptr<BackupSource>> MdsFront::BeginBackup() {
  const Served* served = served_.load();
  if (served == nullptr || !served->authority->MayServe()) return Refusal();
  return served->backup.BeginBackup();
}

}  // namespace nacre
