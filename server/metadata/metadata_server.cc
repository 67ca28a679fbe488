#include "server/metadata/metadata_server.h"

#include <sys/stat.h>

#include <cerrno>
#include <optional>

#include "common/log.h"
#include "common/metrics.h"
#include "rpc/convert.h"
#include "rpc/mutation.h"
#include "server/kv/losses.h"
#include "server/metadata/administer.h"
#include "server/metadata/background.h"
#include "server/metadata/batch.h"
#include "server/metadata/directory_leases.h"
#include "server/metadata/dispatch.h"
#include "server/metadata/eviction.h"
#include "server/metadata/file_leases.h"
#include "server/metadata/left_objects.h"
#include "server/metadata/mds.h"
#include "server/metadata/migration.h"
#include "server/metadata/new_objects.h"
#include "server/metadata/ops/open_common.h"
#include "server/metadata/ops/session_ops.h"
#include "server/metadata/ost_removal.h"
#include "server/metadata/recall.h"
#include "server/metadata/truncation.h"

namespace nacre {
namespace {

using mds::Mds;
using mds::MdsPtr;
using mds::Op;
using mds::SessionPtr;

// Damage is told to the log and to nacre status as well as to whoever met it.
proto::MetadataReply ToReply(Mds& mds, mds::Reply result) {
  if (result.ok()) return *std::move(result);
  if (absl::IsDataLoss(result.status())) mds.NoteDamage(result.status());
  proto::MetadataReply reply;
  *reply.mutable_status() = ToProto(result.status());
  return reply;
}

struct Sender {
  SessionPtr session;
  uint64_t stream = 0;
};

StatusOr<Sender> FindSender(Mds& mds, const std::shared_ptr<MetadataPeer>& peer,
                            const proto::MetadataRequest& request) {
  SessionPtr session = mds.sessions.Find(request.session());
  mds::Session::Heard heard{.ended = true};
  if (session != nullptr) heard = session->Hear(peer, mds.listening.Now());
  if (heard.ended)
    return ErrnoError(ESTALE, absl::StrFormat("session %d is not known: connect again", request.session()));
  if (!heard.stream.has_value()) {
    peer->Close();  // a client that is still there, behind an attempt that was overtaken, connects again
    return ErrnoError(ESTALE, absl::StrFormat("session %d goes on over another stream", request.session()));
  }
  return Sender{std::move(session), *heard.stream};
}

// A recorded reply says that a handle was opened, or kept for the client; who has restarted or reclaimed
// since does not know of it.
void NoteHandles(const Op& op, const proto::MetadataReply& reply) {
  if (reply.status().error() != 0) return;
  const proto::MetadataRequest& request = op.request;
  // A fifo or device of the name that Create found is not opened here.
  const proto::Attr& opened = reply.entry().attr();
  if (request.has_create() && S_ISREG(opened.mode()))
    mds::NoteOpen(op, FromProto(opened.fid()), request.create().flags());
  if (request.has_open()) mds::NoteOpen(op, FromProto(opened.fid()), request.open().flags());
  const proto::Attr* removed = nullptr;
  if (request.has_unlink() && request.unlink().keep_open()) removed = &reply.attr().attr();
  if (request.has_rename() && request.rename().keep_open() && reply.entry().has_replaced())
    removed = &reply.entry().replaced();
  if (removed != nullptr && removed->nlink() == 0) mds::NoteKept(op, FromProto(removed->fid()));
}

// The file that the request has opened for writing; none.
Fid OpenedForWriting(const proto::MetadataRequest& request, const proto::MetadataReply& reply) {
  if (reply.status().error() != 0 || !S_ISREG(reply.entry().attr().mode())) return {};
  const uint32_t flags = request.has_open() ? request.open().flags() : request.create().flags();
  if (!mds::OpensForWriting(flags)) return {};
  return request.has_open() || request.has_create() ? FromProto(reply.entry().attr().fid()) : Fid{};
}

Op MakeOp(const MdsPtr& mds, const Sender& sender, const proto::MetadataRequest& request) {
  Op op{mds, sender.session, request, mds::FromProto(request.credentials()), mds->env.clock.Wall()};
  op.stream = sender.stream;
  return op;
}

bool MayBeUntold(const Op& op, const Status& status) {
  return ToErrno(status) == ENOENT && mds::NamesUntold(*op.mds, op.session->id, op.request);
}

// Carries the mutation out with everything that it changes covered (change_guard.h). Its time is that at
// which it has been: others may have written to the file while this one waited.
Task<mds::Reply> Guarded(Op& op, mds::ChangeGuard& guard) {
  op.guard = &guard;
  const std::vector<mds::Touched> changed = mds::TouchedBy(*op.mds, op.request);
  CO_RETURN_IF_ERROR(co_await guard.Cover(changed));
  for (bool waited = false;;) {
    op.now = op.request.has_time() ? FromProto(op.request.time()) : op.mds->env.clock.Wall();
    mds::Reply reply = co_await mds::Dispatch(op);
    if (guard.lacks()) {
      CO_RETURN_IF_ERROR(co_await guard.CoverMissing());
    } else if (!waited && MayBeUntold(op, reply.status())) {
      CO_RETURN_IF_ERROR(co_await mds::AwaitMakers(op.mds, op.session->id, op.request));
      waited = true;
    } else {
      co_return reply;
    }
  }
}

void AddLeases(const std::vector<mds::LeaseGrant>& leases, proto::MetadataReply* reply) {
  for (const mds::LeaseGrant& lease : leases) *reply->add_directory_leases() = lease.ToProto();
}

// Does a mutation unless it was done before.
Task<proto::MetadataReply> Once(MdsPtr mds, Sender sender, const proto::MetadataRequest& request, bool behind,
                                std::optional<OneShot<Unit>> placed) {
  Op op = MakeOp(mds, sender, request);
  const SessionPtr& session = sender.session;
  op.behind = behind;
  op.placed = std::move(placed);
  while (true) {
    auto begun = session->BeginMutation(request.sequence(), request.low_water());
    if (begun.answer.has_value() && !mds->options.plant_repeat_twice) {
      NoteHandles(op, *begun.answer);
      if (const Fid opened = OpenedForWriting(request, *begun.answer)) {
        Status alone = co_await mds::AwaitWritersOf(mds, session->id, opened);
        if (!alone.ok()) co_return ToReply(*mds, alone);
      }
      // A recorded answer does not say whether others wrote beside it: it counts as beside them.
      const bool beside_others = request.update_size().beside();
      mds::SayWhetherAlone(*mds, session->id, request, beside_others, &*begun.answer);
      co_return *std::move(begun.answer);
    }
    if (!begun.wait.has_value()) break;
    co_await begun.wait->Wait();
  }
  const std::optional<mds::LeaseGrant> born = mds::GrantBorn(*mds, session, request);
  using For = mds::ChangeGuard::For;
  mds::ChangeGuard guard(mds, session->id, request.update_size().beside() ? For::kBeside : For::kRequest);
  proto::MetadataReply reply = ToReply(*mds, co_await Guarded(op, guard));
  if (born && reply.status().error() != 0) mds::EndBorn(*mds, *born);
  session->EndMutation(request.sequence(), reply);
  AddLeases(mds::GrantForChanging(*mds, session, request, reply, guard), &reply);
  const auto lease = mds::GrantFileForChanging(*mds, session, request, reply, guard);
  if (lease) *reply.mutable_file_lease() = lease->ToProto();
  mds::SayWhetherAlone(*mds, session->id, request, guard.was_beside_others(), &reply);
  co_return reply;
}

// False for the requests that keep a session alive and that have nothing to do with a file's bytes.
bool NeedsSizes(const proto::MetadataRequest& request) {
  switch (request.op_case()) {
    case proto::MetadataRequest::kDisconnect:
    case proto::MetadataRequest::kKeepAlive:
    case proto::MetadataRequest::kReclaim:
    case proto::MetadataRequest::kReleaseLease:
    case proto::MetadataRequest::kReportProblem:
      return false;
    default:
      return true;
  }
}

Status CheckRequest(const proto::MetadataRequest& request) {
  if (request.time().nanos() < 1'000'000'000) return OkStatus();
  return ErrnoError(EINVAL, absl::StrFormat("a time with %d nanoseconds", request.time().nanos()));
}

// A mutation of a batch, as if it had come alone.
Task<proto::MetadataReply> PartOfBatch(MdsPtr mds, Sender sender, proto::MetadataRequest one,
                                       std::optional<OneShot<Unit>> placed) {
  Status valid = CheckRequest(one);
  if (valid.ok() && !IsMutation(one)) {
    valid = ErrnoError(EPROTO, absl::StrFormat("operation %d cannot be part of a batch", one.op_case()));
  }
  if (!valid.ok()) co_return ToReply(*mds, valid);
  co_return co_await Once(mds, sender, one, true, std::move(placed));
}

// Returns when the batch before has been done: of several that a client has under way, a later one may come
// first over a new stream.
Task<Status> AwaitBatchBefore(Sender sender, uint64_t last) {
  for (;;) {
    CO_ASSIGN_OR_RETURN(auto wait, sender.session->WaitFor(last, sender.stream));
    if (!wait) co_return OkStatus();
    co_await wait->Wait();
  }
}

Task<proto::MetadataReply> HandleBatch(MdsPtr mds, Sender sender, proto::MetadataRequest request) {
  if (request.batch().after() != 0) {
    Status turn = co_await AwaitBatchBefore(sender, request.batch().after());
    if (!turn.ok()) co_return ToReply(*mds, turn);
  }
  for (proto::MetadataRequest& one : *request.mutable_batch()->mutable_requests()) {
    one.set_session(request.session());
    one.set_low_water(request.low_water());
  }
  auto carry_out = [mds, sender](proto::MetadataRequest one, std::optional<OneShot<Unit>> placed) {
    return PartOfBatch(mds, sender, std::move(one), std::move(placed));
  };
  proto::MetadataReply reply;
  *reply.mutable_batch() = co_await mds::CarryOut(std::move(*request.mutable_batch()), carry_out);
  reply.mutable_batch()->set_names_behind(mds->AllowsNamesBehind(*sender.session));
  co_return reply;
}

// Before a request is carried out that changes nothing: the leases that it asks for, as far as they are
// granted. Nothing that it reads is untold by then (directory_leases.h).
Task<StatusOr<std::vector<mds::LeaseGrant>>> TakeLeases(MdsPtr mds, SessionPtr session,
                                                        const proto::MetadataRequest& request) {
  for (;;) {
    if (mds::NeedsWriters(*mds, session->id, request))
      CO_RETURN_IF_ERROR(co_await mds::AwaitWriters(mds, session->id, request));
    std::vector<mds::LeaseGrant> leases = mds::GrantForReading(*mds, session, request);
    if (leases.empty() || !mds::NeedsWriters(*mds, session->id, request)) co_return leases;
  }
}

Task<proto::MetadataReply> Answer(MdsPtr mds, Sender sender, const proto::MetadataRequest& request) {
  if (IsMutation(request)) co_return co_await Once(mds, sender, request, false, {});
  const SessionId reader = sender.session->id;
  Op op = MakeOp(mds, sender, request);
  std::vector<mds::LeaseGrant> leases;
  mds::Reply result;
  for (bool waited = false;;) {
    auto granted = co_await TakeLeases(mds, sender.session, request);
    if (!granted.ok()) co_return ToReply(*mds, granted.status());
    leases = *std::move(granted);
    result = co_await mds::Dispatch(op);
    // Somebody was granted WRITE of the file in between.
    if (request.has_acquire_lease() && absl::IsAborted(result.status())) continue;
    if (waited || !MayBeUntold(op, result.status())) break;
    // Its maker may hold what covers it by then, born with it.
    Status told = co_await mds::AwaitMakers(mds, reader, request);
    if (!told.ok()) co_return ToReply(*mds, told);
    waited = true;
  }
  proto::MetadataReply reply = ToReply(*mds, std::move(result));
  if (const Fid opened = OpenedForWriting(request, reply)) {
    Status alone = co_await mds::AwaitWritersOf(mds, reader, opened);
    if (!alone.ok()) co_return ToReply(*mds, alone);
  }
  AddLeases(leases, &reply);
  if (request.want_lease()) mds::SayWhetherAlone(*mds, reader, request, /*beside_others=*/false, &reply);
  co_return reply;
}

Task<proto::MetadataReply> HandleRequest(MdsPtr mds, std::shared_ptr<MetadataPeer> peer,
                                         proto::MetadataRequest request) {
  if (mds->closed) co_return ToReply(*mds, absl::UnavailableError("the metadata server is stopping"));
  mds->messages.CountRequest(request);
  if (request.op_case() == proto::MetadataRequest::kConnect) {
    co_return ToReply(*mds,
                      co_await mds::Connect(mds, std::move(peer), std::move(*request.mutable_connect())));
  }
  auto sender = FindSender(*mds, peer, request);
  if (!sender.ok()) co_return ToReply(*mds, sender.status());
  Status valid = CheckRequest(request);
  if (!valid.ok()) co_return ToReply(*mds, valid);
  if (request.answered_below() != 0) sender->session->Acknowledge(request);
  Latch& sizes = mds->writer_recovery.sizes();
  if (sizes.closed() && NeedsSizes(request)) co_await sizes.Wait();
  if (request.has_batch()) co_return co_await HandleBatch(mds, *sender, std::move(request));
  proto::MetadataReply reply = co_await Answer(mds, *sender, request);
  // A recorded reply, too: the process that made it may have ended before others had forgotten their pages.
  if (!mds::NeedsRecall(*mds, sender->session->id, request, reply)) co_return reply;
  Status recalled = co_await mds::RecallRead(mds, sender->session->id, request, reply);
  if (!recalled.ok()) co_return ToReply(*mds, recalled);
  co_return reply;
}

// Members of chains wait here for each other: the registry must outlive that.
Task<proto::RegisterOssReply> Register(MdsPtr mds, proto::RegisterOssRequest request) {
  co_return co_await mds->osts.Register(std::move(request));
}

Task<proto::ReportChainReply> Report(MdsPtr mds, proto::ReportChainRequest request) {
  co_return co_await mds->osts.ReportChain(std::move(request));
}

class Server : public MetadataServer {
 public:
  explicit Server(MdsPtr mds) : mds_(std::move(mds)) {}

  ~Server() override { Close(); }

  Task<proto::MetadataReply> Handle(std::shared_ptr<MetadataPeer> peer,
                                    proto::MetadataRequest request) override {
    return HandleRequest(mds_, std::move(peer), std::move(request));
  }

  void Disconnected(std::shared_ptr<MetadataPeer> peer) override {
    mds_->connecting.Disconnected(peer.get());
    for (const SessionPtr& session : mds_->sessions.All()) session->Detach(peer);
  }

  Task<proto::RegisterOssReply> RegisterOss(proto::RegisterOssRequest request) override {
    return Register(mds_, std::move(request));
  }

  Task<proto::HeartbeatReply> Heartbeat(proto::HeartbeatRequest request) override {
    co_return mds_->osts.Heartbeat(request);
  }

  Task<proto::ReportChainReply> ReportChain(proto::ReportChainRequest request) override {
    return Report(mds_, std::move(request));
  }

  Task<proto::ClusterStatus> GetStatus() override { return mds::MakeStatus(mds_); }

  Task<proto::AdminReply> Administer(proto::AdminRequest request) override {
    return mds::Administer(mds_, std::move(request));
  }

  Task<Status> Stop() override {
    Status status = co_await mds_->tables->Sync();
    Close();
    std::string losses_key = mds::TableKey(mds::Table::kLosses);
    if (status.ok()) status = co_await EndClean(&mds_->env.store, std::move(losses_key));
    co_return status;
  }

 private:
  void Close() {
    mds_->closed = true;
    mds_->tables->Close();
    mds_->osts.Close();
  }

  const MdsPtr mds_;
};

}  // namespace

Task<StatusOr<std::unique_ptr<MetadataServer>>> MetadataServer::Start(MetadataEnvironment environment,
                                                                      MetadataOptions options) {
  if (options.inline_limit > mds::kStripeAlignment) {
    co_return ErrnoError(EINVAL, absl::StrFormat("an inline limit of %d bytes: at most %d are possible",
                                                 options.inline_limit, mds::kStripeAlignment));
  }
  options.lease = std::min(options.lease, options.session_timeout);
  CO_ASSIGN_OR_RETURN(
      auto tables, co_await mds::Tables::Open(environment.store, environment.random, environment.clock.Wall(),
                                              options.record_bytes));
  if (options.plant_no_reserve) tables->PlantNoReserve();
  if (options.plant_stays_complete) tables->PlantStaysComplete();
  auto mds = std::make_shared<Mds>(environment, options, std::move(tables));
  std::string losses_key = mds::TableKey(mds::Table::kLosses);
  CO_ASSIGN_OR_RETURN(mds->losses, co_await CountLosses(&environment.store, losses_key, options.boot));
  CO_RETURN_IF_ERROR(co_await mds->ids.Start());
  CO_RETURN_IF_ERROR(mds->osts.Load(mds->ids.FirstObjectRequest()));
  CO_RETURN_IF_ERROR(mds->writer_recovery.Load(*mds));
  CO_RETURN_IF_ERROR(co_await mds->sessions.Load(mds->listening.Now()));
  CO_RETURN_IF_ERROR(co_await mds::Destroyer::TakeUpRecordsByFile(mds));
  CO_RETURN_IF_ERROR(co_await mds::NewObjects::WithdrawAll(mds));
  CO_RETURN_IF_ERROR(co_await mds::ResumeTruncations(mds));
  CO_RETURN_IF_ERROR(co_await mds::ResumeTails(mds));
  CO_RETURN_IF_ERROR(co_await mds::ForgetRemovedOsts(mds));
  CO_RETURN_IF_ERROR(mds::ResumeEvictions(mds));
  CO_RETURN_IF_ERROR(mds::ResumeLeaving(mds));
  mds::StartBackground(mds);
  std::unique_ptr<MetadataServer> server = std::make_unique<Server>(std::move(mds));
  co_return server;
}

}  // namespace nacre
