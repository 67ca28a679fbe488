// One call from its bytes to its reply: decoding, admission, the operation.
#include <google/protobuf/arena.h>

#include <cerrno>

#include "common/log.h"
#include "common/metrics.h"
#include "rpc/convert.h"
#include "rpc/versions.h"
#include "server/object/chain.h"
#include "server/object/ops/ops.h"

namespace nacre::ost {
namespace {

Task<Status> Dispatch(OpContext context) {
  switch (context.request->op_case()) {
    case proto::ObjectRequest::kRead:
      co_return co_await ReadOp(context);
    case proto::ObjectRequest::kWrite:
      co_return co_await WriteOp(context);
    case proto::ObjectRequest::kTruncate:
      co_return co_await TruncateOp(context);
    case proto::ObjectRequest::kPunch:
      co_return co_await PunchOp(context);
    case proto::ObjectRequest::kPreallocate:
      co_return co_await PreallocateOp(context);
    case proto::ObjectRequest::kStat:
      co_return co_await StatOp(context);
    case proto::ObjectRequest::kSeek:
      co_return co_await SeekOp(context);
    case proto::ObjectRequest::kDestroy:
      co_return co_await DestroyOp(context);
    case proto::ObjectRequest::kSync:
      co_return co_await SyncOp(context);
    case proto::ObjectRequest::kStatfs:
      co_return co_await StatfsOp(context);
    case proto::ObjectRequest::kGrant:
      co_return co_await GrantOp(context);
    case proto::ObjectRequest::kFence:
      co_return co_await FenceOp(context);
    case proto::ObjectRequest::kList:
      co_return co_await ListOp(context);
    case proto::ObjectRequest::kListGrown:
      co_return co_await ListGrownOp(context);
    case proto::ObjectRequest::kSettleGrown:
      co_return co_await SettleGrownOp(context);
    case proto::ObjectRequest::kSetChain:
      co_return co_await SetChainOp(context);
    case proto::ObjectRequest::kApply:
      co_return co_await ApplyOp(context);
    case proto::ObjectRequest::kLearn:
      co_return co_await LearnOp(context);
    case proto::ObjectRequest::kDigest:
      co_return co_await DigestOp(context);
    case proto::ObjectRequest::kVersions:
      co_return co_await VersionsOp(context);
    case proto::ObjectRequest::kPing:
      co_return OkStatus();
    case proto::ObjectRequest::OP_NOT_SET:
      break;
  }
  co_return ErrnoError(EOPNOTSUPP,
                       "the request names no operation that this server knows; is the client newer?");
}

// The sender says itself who it is (there is no authentication): this stops errors, not an attacker.
// Destroying is not among these: a client destroys objects that its own late write has made anew behind a
// truncation.
bool IsForMdsAlone(const proto::ObjectRequest& request) {
  switch (request.op_case()) {
    case proto::ObjectRequest::kTruncate:
    case proto::ObjectRequest::kFence:
    case proto::ObjectRequest::kList:
    case proto::ObjectRequest::kListGrown:
    case proto::ObjectRequest::kSettleGrown:
    case proto::ObjectRequest::kSetChain:
    case proto::ObjectRequest::kLearn:
      return true;
    default:
      return false;
  }
}

Status CheckHeader(ServerCore& core, const proto::ObjectRequest& request) {
  if (core.stopping()) return ErrnoError(ECONNRESET, "the server is stopping");
  const VersionRange spoken = RangeOf(request.version(), 0, kUnnumberedServerVersion);
  RETURN_IF_ERROR(CommonVersion(spoken, kServerVersions, "the sender", "this OSS").status());
  if (request.instance() != 0 && request.instance() != core.instance) {
    return ErrnoError(ECONNRESET, absl::StrCat("this is instance ", core.instance, " of the server, not ",
                                               request.instance()));
  }
  if (core.Find(request.ost()) == nullptr) {
    return ErrnoError(ENODEV, absl::StrCat("no OST ", request.ost(), " at ", core.options.listen));
  }
  if (request.session() != 0 && IsForMdsAlone(request)) {
    return ErrnoError(EPERM,
                      absl::StrCat("session ", request.session(), " may not ask for this; the MDS does"));
  }
  return OkStatus();
}

// Where the OST has several members: whether this one is the one to ask.
Status CheckPlace(const Target& target, const proto::ObjectRequest& request) {
  if (request.chain_epoch() != 0) {
    if (target.chain == nullptr)
      return ErrnoError(EINVAL, absl::StrCat("OST ", request.ost(), " has one member here"));
    return target.chain->Hear(request);
  }
  if (request.has_apply() || request.has_learn() || request.has_digest())
    return ErrnoError(EPERM, "only a member of the OST's chain may ask for this");
  if (target.chain != nullptr && request.read().versions()) return target.chain->CheckInSync();
  // A member hears of fences before it becomes the head. A ping is not among these: its answer says how often
  // the OST has lost power, which one that has yet to be filled does not know.
  const bool of_the_server = request.has_set_chain() || request.has_statfs() || request.has_fence();
  return target.chain == nullptr || of_the_server ? OkStatus() : target.chain->CheckHead();
}

// Whether a repeat after a restart must not be carried out again. A grant is in memory only and ends with the
// process. An object that is destroyed again is not there any more, since no object ever has the same id.
bool AnswerMustLast(const proto::ObjectRequest& request) {
  return request.sequence() != 0 && !request.has_grant() && !request.has_destroy();
}

// The epoch of the MDS that asks; 0: there is only one, or it is not the MDS. A request that a member of the
// chain hands on was looked at where it came in.
uint64_t PrimaryThatAsks(const proto::ObjectRequest& request) {
  return request.session() == 0 && request.chain_epoch() == 0 ? request.mdt_epoch() : 0;
}

void SetStatus(const Status& status, const Sessions& sessions, uint64_t primary, proto::ObjectReply* reply) {
  *reply->mutable_status() = ToProto(status);
  if (ToErrno(status) == ESTALE && primary < sessions.mdt_epoch() && primary != 0)
    reply->set_mdt_epoch(sessions.mdt_epoch());
}

// The encoded reply. `recorded` answers stand for repeats of the request; others leave it undone.
Task<std::string> Answer(std::shared_ptr<ServerCore> core, IncomingCall* call,
                         const proto::ObjectRequest* request, proto::ObjectReply* reply) {
  reply->set_instance(core->instance);
  Status checked = CheckHeader(*core, *request);
  if (!checked.ok()) {
    *reply->mutable_status() = ToProto(checked);
    co_return reply->SerializeAsString();
  }
  Target* target = core->Find(request->ost());
  const uint64_t primary = PrimaryThatAsks(*request);
  if (!target->sessions->Obeys(primary)) checked = co_await ObeyPrimary(core, primary, target);
  if (checked.ok()) checked = CheckPlace(*target, *request);
  if (!checked.ok()) {
    SetStatus(checked, *target->sessions, primary, reply);
    co_return reply->SerializeAsString();
  }
  Sessions::Admission admission = co_await target->sessions->Admit(
      request->session(), request->sequence(), request->low_water(), primary, request->chain_epoch() != 0);
  if (admission.answer) co_return *std::move(admission.answer);
  if (!admission.status.ok()) {
    SetStatus(admission.status, *target->sessions, primary, reply);
    co_return reply->SerializeAsString();
  }
  reply->set_losses(target->store->losses());
  if (admission.recorded) {
    reply->mutable_write()->set_blocks_delta(*admission.recorded * static_cast<int64_t>(kBlockSize / 512));
    reply->set_grant(target->sessions->GrantOf(request->session()));
    co_return reply->SerializeAsString();
  }
  if (AnswerMustLast(*request)) admission.ticket.RecordAnswer();
  admission.ticket.SetHandedOn({request->chain_epoch(), request->chain_turn()});
  if (request->has_apply()) admission.ticket.SetDelta(request->apply().delta());
  OpContext context{target, call, request, reply, &admission.ticket, core.get()};
  Status status = co_await Dispatch(context);
  const Answering* answering = admission.ticket.answering();
  if (status.ok() && answering != nullptr && !answering->stored)
    status = co_await target->store->Record(&admission.ticket);
  if (ToErrno(status) == ESHUTDOWN) status = ErrnoError(ECONNRESET, "the server is stopping");
  SetStatus(status, *target->sessions, primary, reply);
  reply->set_grant(target->sessions->GrantOf(request->session()));
  std::string encoded = reply->SerializeAsString();
  if (request->has_apply()) {
    if (status.ok()) admission.ticket.FinishRecorded();
  } else if (!IsRetryable(status)) {
    admission.ticket.Finish(encoded);
  }
  co_return encoded;
}

}  // namespace

Task<void> HandleCall(std::shared_ptr<ServerCore> core, std::shared_ptr<IncomingCall> call) {
  ServerCore::Running running(core);
  static Counter& requests = GetCounter("ost.requests");
  requests.Add();
  google::protobuf::Arena arena;  // of the messages: a read of many ranges has hundreds of parts
  auto* request = google::protobuf::Arena::CreateMessage<proto::ObjectRequest>(&arena);
  auto* reply = google::protobuf::Arena::CreateMessage<proto::ObjectReply>(&arena);
  std::string encoded;
  if (request->ParseFromString(call->body())) {
    encoded = co_await Answer(core, call.get(), request, reply);
  } else {
    *reply->mutable_status() =
        ToProto(ErrnoError(EPROTO, absl::StrCat("malformed request of ", call->body().size(), " bytes")));
    encoded = reply->SerializeAsString();
  }
  Status sent = co_await call->Reply(std::move(encoded));
  if (!sent.ok()) LogDebug("a reply was not delivered: %s", std::string(sent.message()));
}

}  // namespace nacre::ost
