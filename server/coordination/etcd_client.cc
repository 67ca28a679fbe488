#include "server/coordination/etcd_client.h"

#include <absl/strings/match.h>
#include <absl/strings/str_format.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <cerrno>

#include "rpc/grpc_call.h"
#include "rpc/grpc_common.h"
#include "server/coordination/coordinator.h"
#include "server/coordination/etcd.grpc.pb.h"

namespace nacre::coordination {
namespace {

using etcdserverpb::Auth;
using etcdserverpb::KV;

constexpr Duration kPause = 50ms;   // after each round over all members
constexpr Duration kFresh = 200ms;  // an answer proves for so long that its connection stands
constexpr int kMostDoublings = 6;
constexpr int kTokens = 2;  // that one call tries

std::shared_ptr<grpc::ChannelCredentials> Credentials(const EtcdAccess& access) {
  if (!access.tls) return grpc::InsecureChannelCredentials();
  return grpc::SslCredentials({access.ca, access.key, access.certificate});
}

template <typename Service, typename Reply, typename Method, typename Request>
Task<GrpcAnswer<Reply>> Send(std::shared_ptr<grpc::Channel> channel, Method method, Request request,
                             std::string token, Duration timeout) {
  const auto stub = Service::NewStub(channel);
  const auto call = std::make_shared<GrpcCall<Reply>>(timeout);
  EtcdClient::SetMetadata(call->context(), token);
  co_return co_await call->Ask(*stub, method, std::move(request));
}

// Nothing but a connection that fails ends with one of these.
bool Answered(const grpc::Status& status) {
  const grpc::StatusCode code = status.error_code();
  return code != grpc::StatusCode::UNAVAILABLE && code != grpc::StatusCode::DEADLINE_EXCEEDED &&
         code != grpc::StatusCode::CANCELLED;
}

}  // namespace

// The attempts of one call: at which member, for how long, and why the last one failed.
class EtcdClient::Tries {
 public:
  Tries(EtcdClient& client, std::string what, Duration timeout)
      : client_(client), what_(std::move(what)), begin_(RealClock().Now()), end_(begin_ + timeout) {
    member_ = client.current();
  }

  const std::string& what() const { return what_; }
  size_t member() const { return member_; }
  bool over() const { return left() <= 0ns; }
  Duration left() const { return end_ - RealClock().Now(); }
  // For one attempt.
  Duration patience() const {
    const int doublings = std::min<int>(failures_ / static_cast<int>(client_.members()), kMostDoublings);
    return std::min(left(), client_.attempt() * (1 << doublings));
  }

  // The attempt failed: the next member, after a pause if all have had their turn.
  Task<void> Fail(std::string why) {
    why_ = std::move(why);
    client_.Failed(member_);
    member_ = client_.current();
    if (++failures_ % static_cast<int>(client_.members()) != 0) co_return;
    const Duration pause = std::min(left(), kPause);
    if (pause > 0ns) co_await RealClock().Sleep(pause);
  }

  // False: tokens have been refused often enough.
  bool AnotherToken() { return ++tokens_ < kTokens; }

  Status Failure() const { return Failure(why_.empty() ? "there was no time to ask anybody" : why_); }
  Status Failure(std::string_view why) const { return Unavailable(what_, RealClock().Now() - begin_, why); }

 private:
  EtcdClient& client_;
  const std::string what_;
  const Duration begin_, end_;
  size_t member_;
  int failures_ = 0, tokens_ = 0;
  std::string why_;
};

EtcdClient::EtcdClient(EtcdAccess access) : access_(std::move(access)) {
  const std::shared_ptr<grpc::ChannelCredentials> credentials = Credentials(access_);
  for (const EtcdAccess::Endpoint& endpoint : access_.endpoints) {
    channels_.push_back(NewGrpcChannel(endpoint.target, credentials));
  }
  answered_.assign(channels_.size(), Duration::min());
}

EtcdClient::~EtcdClient() = default;

Task<StatusOr<etcdserverpb::RangeResponse>> EtcdClient::Range(std::string what,
                                                              etcdserverpb::RangeRequest request,
                                                              Duration timeout) {
  const int64_t floor = this->floor();
  Tries tries(*this, std::move(what), timeout);
  while (!tries.over()) {
    const size_t member = tries.member();
    const StatusOr<std::string> token = co_await Token(member, tries.patience());
    if (!token.ok() && !absl::IsUnavailable(token.status())) co_return token.status();
    if (!token.ok()) {
      std::string why(token.status().message());
      co_await tries.Fail(std::move(why));
      continue;
    }
    etcdserverpb::RangeRequest copy = request;
    GrpcAnswer<etcdserverpb::RangeResponse> answer = co_await Send<KV, etcdserverpb::RangeResponse>(
        channel(member), &KV::Stub::PrepareAsyncRange, std::move(copy), *token, tries.patience());
    if (answer.status.ok()) {
      NoteAnswer(member);
      CO_RETURN_IF_ERROR(CheckHeader(member, answer.reply.header(), floor));
      co_return std::move(answer.reply);
    }
    const Verdict verdict = Judge(answer.status);
    if (verdict == Verdict::kToken) TokenRefused(*token);
    if (verdict == Verdict::kRefused || (verdict == Verdict::kToken && !tries.AnotherToken())) {
      co_return Refusal(tries.what(), member, answer.status);
    }
    if (verdict == Verdict::kToken) continue;
    std::string why = Words(member, answer.status);
    co_await tries.Fail(std::move(why));
  }
  co_return tries.Failure();
}

Task<StatusOr<etcdserverpb::TxnResponse>> EtcdClient::Txn(std::string what, etcdserverpb::TxnRequest request,
                                                          Duration timeout) {
  const int64_t floor = this->floor();
  Tries tries(*this, std::move(what), timeout);
  while (true) {
    CO_RETURN_IF_ERROR(co_await FindConnected(&tries));
    const size_t member = tries.member();
    const StatusOr<std::string> token = co_await Token(member, tries.patience());
    if (!token.ok() && !absl::IsUnavailable(token.status())) co_return token.status();
    if (!token.ok()) {
      std::string why(token.status().message());
      co_await tries.Fail(std::move(why));
      continue;
    }
    if (tries.over()) co_return tries.Failure();
    etcdserverpb::TxnRequest copy = request;
    GrpcAnswer<etcdserverpb::TxnResponse> answer = co_await Send<KV, etcdserverpb::TxnResponse>(
        channel(member), &KV::Stub::PrepareAsyncTxn, std::move(copy), *token, tries.left());
    if (answer.status.ok()) {
      NoteAnswer(member);
      const Status same = CheckHeader(member, answer.reply.header(), floor);
      // It is done, if not where it was to be: who reads again is told what this is about.
      if (!same.ok()) co_return tries.Failure(std::string(same.message()));
      co_return std::move(answer.reply);
    }
    const Verdict verdict = Judge(answer.status);
    if (verdict == Verdict::kToken) TokenRefused(*token);
    if (verdict == Verdict::kToken && tries.AnotherToken()) continue;
    if (verdict != Verdict::kUnknown) co_return Refusal(tries.what(), member, answer.status);
    Failed(member);
    co_return tries.Failure(Words(member, answer.status));
  }
}

// gRPC does not tell whether a request that failed has left the machine, nor does it notice the end of a
// connection while nobody waits for an answer. So a request that must not be done twice is given to a member
// that has just answered: whatever, also that it wants a user.
Task<Status> EtcdClient::FindConnected(Tries* tries) {
  while (!tries->over()) {
    const size_t member = tries->member();
    if (HasJustAnswered(member)) co_return OkStatus();
    etcdserverpb::RangeRequest probe;
    probe.set_key(std::string(1, '\0'));
    probe.set_serializable(true);
    probe.set_count_only(true);
    const GrpcAnswer<etcdserverpb::RangeResponse> answer = co_await Send<KV, etcdserverpb::RangeResponse>(
        channel(member), &KV::Stub::PrepareAsyncRange, std::move(probe), std::string(), tries->patience());
    if (Answered(answer.status)) {
      NoteAnswer(member);
      co_return OkStatus();
    }
    std::string why = Words(member, answer.status);
    co_await tries->Fail(std::move(why));
  }
  co_return tries->Failure();
}

size_t EtcdClient::current() const {
  std::lock_guard lock(mutex_);
  return current_;
}

void EtcdClient::Failed(size_t member) {
  std::lock_guard lock(mutex_);
  answered_[member] = Duration::min();
  if (current_ == member) current_ = (member + 1) % channels_.size();
}

void EtcdClient::NoteAnswer(size_t member) {
  std::lock_guard lock(mutex_);
  answered_[member] = RealClock().Now();
}

bool EtcdClient::HasJustAnswered(size_t member) const {
  std::lock_guard lock(mutex_);
  return answered_[member] != Duration::min() && RealClock().Now() - answered_[member] < kFresh;
}

int64_t EtcdClient::floor() const {
  std::lock_guard lock(mutex_);
  return revision_;
}

Task<StatusOr<std::string>> EtcdClient::Token(size_t member, Duration timeout) {
  if (access_.user.empty()) co_return std::string();
  {
    std::lock_guard lock(mutex_);
    if (token_.has_value()) co_return *token_;
  }
  etcdserverpb::AuthenticateRequest request;
  request.set_name(access_.user);
  request.set_password(access_.password);
  GrpcAnswer<etcdserverpb::AuthenticateResponse> answer =
      co_await Send<Auth, etcdserverpb::AuthenticateResponse>(
          channel(member), &Auth::Stub::PrepareAsyncAuthenticate, std::move(request), std::string(), timeout);
  const bool wants_none = answer.status.error_code() == grpc::StatusCode::FAILED_PRECONDITION &&
                          absl::StrContains(answer.status.error_message(), "not enabled");
  if (!answer.status.ok() && !wants_none) {
    const std::string what = absl::StrFormat("etcd user '%s'", access_.user);
    if (Judge(answer.status) == Verdict::kUnknown) {
      co_return Unavailable(what, timeout, Words(member, answer.status));
    }
    co_return Refusal(what, member, answer.status);
  }
  std::lock_guard lock(mutex_);
  token_ = answer.reply.token();
  co_return *token_;
}

void EtcdClient::TokenRefused(const std::string& token) {
  std::lock_guard lock(mutex_);
  if (token_ == token) token_.reset();
}

void EtcdClient::SetMetadata(grpc::ClientContext* context, const std::string& token) {
  // A member that knows of no leader says so at once, and ends a watch.
  context->AddMetadata("hasleader", "true");
  if (!token.empty()) context->AddMetadata("token", token);
}

Status EtcdClient::CheckHeader(size_t member, const etcdserverpb::ResponseHeader& header,
                               std::optional<int64_t> floor) {
  std::lock_guard lock(mutex_);
  if (cluster_ == 0) cluster_ = header.cluster_id();
  if (header.cluster_id() != cluster_) {
    return ErrnoError(EBUSY,
                      absl::StrFormat("etcd at %s belongs to the cluster %x, but what was asked before "
                                      "to %x: endpoints must be members of one cluster",
                                      address(member), header.cluster_id(), cluster_));
  }
  if (floor.has_value() && header.revision() < *floor) {
    return ErrnoError(EBUSY,
                      absl::StrFormat("etcd at %s is at revision %d, but was at %d before: it was emptied "
                                      "or set back to an earlier state",
                                      address(member), header.revision(), *floor));
  }
  if (floor.has_value()) revision_ = std::max(revision_, header.revision());
  return OkStatus();
}

std::string EtcdClient::Words(size_t member, const grpc::Status& status) const {
  const std::string& why = status.error_message();
  if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
    return absl::StrFormat("etcd at %s did not answer in time", address(member));
  }
  if (absl::StrContains(why, "etcdserver:")) return absl::StrFormat("etcd at %s: %s", address(member), why);
  return absl::StrFormat("no connection to etcd at %s (%s): check that it runs there and speaks %s",
                         address(member), why,
                         access_.tls ? "TLS, with certificates as given" : "without TLS");
}

// Errors of etcd's that are not here may come after the transaction was carried out. So may "database space
// exceeded": a member that finds room when it accepts a transaction and none when it applies it does both,
// applies it and says this.
EtcdClient::Verdict EtcdClient::Judge(const grpc::Status& status) {
  const std::string& why = status.error_message();
  switch (status.error_code()) {
    case grpc::StatusCode::UNAUTHENTICATED:
      return Verdict::kToken;
    case grpc::StatusCode::INVALID_ARGUMENT:
      return absl::StrContains(why, "user name is empty") || absl::StrContains(why, "auth store is old")
                 ? Verdict::kToken
                 : Verdict::kRefused;
    case grpc::StatusCode::PERMISSION_DENIED:
    case grpc::StatusCode::UNIMPLEMENTED:
      return Verdict::kRefused;
    default:
      return Verdict::kUnknown;
  }
}

Status EtcdClient::Refusal(std::string_view what, size_t member, const grpc::Status& status) const {
  const std::string& why = status.error_message();
  if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED) {
    return ErrnoError(
        EINVAL, absl::StrFormat("%s: what listens at %s is not an etcd: %s", what, address(member), why));
  }
  const bool invalid = status.error_code() == grpc::StatusCode::INVALID_ARGUMENT &&
                       Judge(status) == Verdict::kRefused && !absl::StrContains(why, "authentication failed");
  const std::string user =
      access_.user.empty() ? "no user is given" : absl::StrFormat("the user is '%s'", access_.user);
  return ErrnoError(invalid ? EINVAL : EACCES,
                    absl::StrFormat("%s: etcd at %s refuses it: %s (%s)", what, address(member), why, user));
}

}  // namespace nacre::coordination
