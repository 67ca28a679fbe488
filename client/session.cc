#include "client/session.h"

#include <algorithm>
#include <cerrno>

#include "client/connect_pauses.h"
#include "client/within.h"
#include "common/log.h"
#include "rpc/convert.h"
#include "rpc/versions.h"

namespace nacre::client {
namespace {

constexpr Duration kGoodbyePatience = 5s;
// Where there are several servers: one that takes so long for what it answers at once may be one that is cut
// off from the others, and waits to be the primary for what that lasts. Leases last longer than this.
constexpr Duration kAtOncePatience = 5s;
constexpr Duration kConnectPatience = 10s;     // new sessions wait for old ones after a restart
constexpr Duration kAdmissionPatience = 3min;  // until those that are gone have been evicted

}  // namespace

Session::Session(Executor executor, Clock& clock, Random& random,
                 std::shared_ptr<MetadataConnector> connector, RetryPolicy policy, std::string name,
                 bool replaces, Hooks hooks)
    : executor_(std::move(executor)),
      clock_(clock),
      connector_(std::move(connector)),
      policy_(policy),
      name_(std::move(name)),
      replaces_(replaces),
      hooks_(std::move(hooks)),
      random_(random),
      nonce_(random.Next()) {}

SessionId Session::id() const {
  std::lock_guard lock(mutex_);
  return id_;
}

bool Session::ObjectsKeptSince(Duration begin) const {
  std::lock_guard lock(mutex_);
  return clock_.Now() - begin < lease_;
}

uint64_t Session::mutations() const {
  std::lock_guard lock(mutex_);
  return next_sequence_;
}

uint64_t Session::answered() const {
  std::lock_guard lock(mutex_);
  return LowWater();
}

Status Session::Check(uint64_t epoch) const {
  if (state_ == State::kEnded) return ErrnoError(ESHUTDOWN, "the filesystem is unmounted");
  if (epoch != epoch_)
    return ErrnoError(EIO, "this client's session was evicted by the MDS while the request was under way");
  return OkStatus();
}

uint64_t Session::LowWater() const { return unanswered_.empty() ? next_sequence_ : *unanswered_.begin(); }

// --- connecting ---

Task<StatusOr<proto::ConnectReply>> Session::Start(Duration patience) {
  const Duration began = clock_.Now();
  Duration begin = began;
  ConnectPauses pauses(policy_, connector_->servers());
  for (;;) {
    const Duration asked = clock_.Now();
    uint64_t connection;
    {
      std::lock_guard lock(mutex_);
      connection = ++connection_;
      lost_ = false;
    }
    auto reply = co_await ConnectOnce(connection, pauses.patience(kAtOncePatience));
    if (reply.ok() || !IsRetryable(reply.status())) co_return reply;
    // That one is there, and may be waiting for another client's lease; it knows who asks again. Nobody would
    // be let in who gave up before that has ended, for he left a session behind that is waited for next.
    const Duration now = clock_.Now();
    if (has_others() && now - asked >= kConnectPatience && now - began < kAdmissionPatience) begin = now;
    pauses.Failed();
    if (pauses.all_asked() && clock_.Now() - begin + pauses.pause() > patience) co_return reply;
    co_await clock_.Sleep(pauses.Next());
  }
}

Task<StatusOr<proto::ConnectReply>> Session::ConnectOnce(uint64_t connection, Duration at_once) {
  std::weak_ptr<Session> weak = weak_from_this();
  MetadataChannelEvents events;
  events.on_push = [weak, connection](proto::Push push) {
    if (auto self = weak.lock()) self->Push(connection, std::move(push));
  };
  events.on_lost = [weak, connection](Status why) {
    if (auto self = weak.lock()) self->Lost(connection, std::move(why));
  };
  CO_ASSIGN_OR_RETURN(auto channel, co_await connector_->Connect(std::move(events), policy_.call_timeout));

  proto::MetadataRequest request;
  proto::Connect* connect = request.mutable_connect();
  connect->set_name(name_);
  connect->set_version(kClientVersions.newest);
  connect->set_oldest_version(kClientVersions.oldest);
  bool fresh;
  uint64_t epoch;
  {
    std::lock_guard lock(mutex_);
    fresh = id_ == 0;
    epoch = epoch_;
    connect->set_replaces(fresh && replaces_);
    request.set_session(id_);
    connect->set_session(id_);
    connect->set_nonce(nonce_);
    connect->set_cluster_uuid(cluster_uuid_);
    request.set_low_water(LowWater());
  }
  const Duration sent = clock_.Now();
  const Duration patience = fresh ? kConnectPatience : at_once;
  CO_ASSIGN_OR_RETURN(proto::MetadataReply reply,
                      co_await AskWhileConnecting(channel, std::move(request), patience));
  Status status = FromProto(reply.status());
  if (!status.ok()) {
    channel->Close();
    co_return status;
  }
  const proto::ConnectReply& connected = reply.connect();
  CO_RETURN_IF_ERROR(CheckConnecting(connection, epoch));
  hooks_.connected(connected, fresh, epoch);
  if (!fresh) {
    Status reclaimed = co_await SendReclaim(channel);
    if (!reclaimed.ok()) {
      channel->Close();
      co_return reclaimed;
    }
  }
  std::unique_lock lock(mutex_);
  CO_RETURN_IF_ERROR(CheckConnectingLocked(connection, epoch));
  id_ = connected.session();
  cluster_uuid_ = connected.cluster_uuid();
  lease_ = std::chrono::milliseconds(connected.lease_ms());
  version_ = connected.version();
  keep_alive_ = std::max<Duration>(lease_ / 3, 100ms);
  ConfirmLocked(sent);
  channel_ = std::move(channel);
  state_ = State::kConnected;
  refusal_ = OkStatus();
  Wake();
  ArmKeepAliveLocked(sent);
  lock.unlock();
  hooks_.leases_confirmed();
  co_return connected;
}

Task<StatusOr<proto::MetadataReply>> Session::AskWhileConnecting(std::shared_ptr<MetadataChannel> channel,
                                                                 proto::MetadataRequest request,
                                                                 Duration patience) {
  std::unique_ptr<TimerHandle> timer;
  if (has_others()) timer = clock_.After(executor_, patience, [channel] { channel->Close(); });
  co_return co_await channel->Call(std::move(request));
}

void Session::ConfirmLocked(Duration sent) {
  leases_end_ = std::max(leases_end_.load(), (sent + lease_).count());
}

// The next one goes out in time for the one sent then, however long its answer took.
void Session::ArmKeepAliveLocked(Duration sent) {
  constexpr Duration kLeast = 100ms;
  const Duration pause = std::max<Duration>(sent + keep_alive_ - clock_.Now(), kLeast);
  std::weak_ptr<Session> weak = weak_from_this();
  keep_alive_timer_ = clock_.After(executor_, pause, [weak] {
    if (auto self = weak.lock()) Spawn(self->executor_, self->KeepAlive());
  });
}

// Whether the connection that is being made is still the one that is wanted.
Status Session::CheckConnecting(uint64_t connection, uint64_t epoch) const {
  std::lock_guard lock(mutex_);
  return CheckConnectingLocked(connection, epoch);
}

Status Session::CheckConnectingLocked(uint64_t connection, uint64_t epoch) const {
  if (state_ == State::kEnded) return ErrnoError(ESHUTDOWN, "the filesystem is unmounted");
  if (lost_ || connection != connection_ || epoch != epoch_)
    return ErrnoError(ECONNRESET, "the stream to the MDS was lost at once");
  return OkStatus();
}

Task<Status> Session::SendReclaim(std::shared_ptr<MetadataChannel> channel) {
  std::vector<proto::Reclaim> parts = hooks_.held();
  if (parts.empty()) parts.emplace_back();
  parts.back().set_last(true);
  const SessionId session = id();
  for (proto::Reclaim& part : parts) {
    proto::MetadataRequest request;
    *request.mutable_reclaim() = std::move(part);
    request.set_session(session);
    CO_ASSIGN_OR_RETURN(proto::MetadataReply reply,
                        co_await AskWhileConnecting(channel, std::move(request), kConnectPatience));
    CO_RETURN_IF_ERROR(FromProto(reply.status()));
    for (const proto::Fid& fid : reply.reclaim().lost()) {
      LogWarning("file %s is gone although it was open here: the MDS lost it", FromProto(fid).ToString());
    }
  }
  co_return OkStatus();
}

void Session::Wake() {
  for (OneShot<Unit>& waiter : waiters_) waiter.Set({});
  waiters_.clear();
}

void Session::Lost(uint64_t connection, Status why) {
  {
    std::lock_guard lock(mutex_);
    if (connection != connection_ || lost_) return;
    lost_ = true;
    if (state_ != State::kConnected) return;  // whoever is connecting sees it
    state_ = State::kConnecting;
    channel_.reset();
    keep_alive_timer_.reset();
    connection = ++connection_;
    lost_ = false;
  }
  LogWarning("connection to the MDS at %s lost (%s); connecting again", connector_->address(),
             std::string(why.message()));
  Spawn(executor_, [](std::shared_ptr<Session> self, uint64_t number) -> Task<void> {
    co_await self->Reconnect(number);
  }(shared_from_this(), connection));
}

void Session::GiveUp(uint64_t connection, Status why) {
  std::shared_ptr<MetadataChannel> channel;
  {
    std::lock_guard lock(mutex_);
    if (connection != connection_ || state_ != State::kConnected) return;
    channel = channel_;
  }
  Lost(connection, std::move(why));
  channel->Close();  // what waits for answers by it is repeated
}

Task<void> Session::Reconnect(uint64_t connection) {
  ConnectPauses pauses(policy_, connector_->servers());
  std::set<int> said;
  for (;;) {
    auto reply = co_await ConnectOnce(connection, pauses.patience(kAtOncePatience));
    if (reply.ok()) {
      LogInfo("connected to the MDS at %s again", connector_->address());
      co_return;
    }
    int error = ToErrno(reply.status());
    if (error == ESHUTDOWN) co_return;
    if (error == ESTALE) {
      Evict(std::string(reply.status().message()));
    } else {
      const LogLevel level = said.insert(error).second ? LogLevel::kWarning : LogLevel::kDebug;
      Log(level, "cannot connect to the MDS yet: %s; trying again", std::string(reply.status().message()));
    }
    NoteRefusal(reply.status());
    pauses.Failed();
    co_await clock_.Sleep(pauses.Next());
    std::lock_guard lock(mutex_);
    if (state_ == State::kEnded) co_return;
    connection = ++connection_;
    lost_ = false;
  }
}

void Session::NoteRefusal(const Status& why) {
  const bool refused = ToErrno(why) == EPROTO;
  if (refused && clock_.Now() >= leases_end()) Evict(std::string(why.message()));
  std::unique_lock lock(mutex_);
  refusal_ = refused && id_ == 0 ? why : OkStatus();
  if (refusal_.ok()) return;
  Wake();
  lock.unlock();
  hooks_.leases_confirmed();
}

// --- what the MDS says unasked ---

// An eviction that comes over a stream given up meanwhile counts for nothing: whoever is asked next knows
// whether the session is there.
void Session::Push(uint64_t connection, proto::Push push) {
  if (!push.has_evicted()) return hooks_.push(std::move(push));
  {
    std::lock_guard lock(mutex_);
    if (connection != connection_) return;
  }
  Evict(push.evicted().reason());
  GiveUp(connection, absl::UnavailableError("the session that it carried has ended"));  // a new one follows
}

void Session::Evict(std::string reason) {
  uint64_t epoch;
  {
    std::lock_guard lock(mutex_);
    if (state_ == State::kEnded || id_ == 0) return;
    epoch = ++epoch_;
    leases_end_ = 0;
    id_ = 0;
    nonce_ = random_.Next();
    next_sequence_ = 1;
    acknowledged_ = 0;
    unanswered_.clear();
    Wake();
  }
  LogError(
      "the MDS has evicted this client (%s): open files and what was not written back are lost; going on "
      "with a new session",
      reason);
  hooks_.evicted(epoch);
}

// --- staying there, and the end ---

std::unique_ptr<TimerHandle> Session::GiveUpWithoutAnswer() {
  uint64_t connection;
  {
    std::lock_guard lock(mutex_);
    connection = connection_;
  }
  std::weak_ptr<Session> weak = weak_from_this();
  return clock_.After(executor_, kAtOncePatience, [weak, connection] {
    auto self = weak.lock();
    if (self == nullptr) return;
    self->GiveUp(connection, ErrnoError(ETIMEDOUT, "it does not answer a keep-alive"));
  });
}

Task<void> Session::KeepAlive() {
  std::shared_ptr<Session> self = shared_from_this();
  proto::MetadataRequest request;
  hooks_.report(request.mutable_keep_alive());
  const uint64_t epoch = this->epoch();
  const Duration sent = clock_.Now();
  std::unique_ptr<TimerHandle> timer;
  if (has_others()) timer = GiveUpWithoutAnswer();
  auto reply = co_await CallOnce(epoch, std::move(request));
  timer.reset();
  if (!reply.ok()) LogDebug("keep-alive: %s", std::string(reply.status().message()));
  if (reply.ok()) {
    {
      std::lock_guard lock(mutex_);
      if (epoch == epoch_) ConfirmLocked(sent);
    }
    hooks_.kept_alive(reply->keep_alive());
    hooks_.leases_confirmed();
  }
  std::lock_guard lock(mutex_);
  if (state_ == State::kConnected) ArmKeepAliveLocked(sent);
}

Task<void> Session::SayGoodbye() {
  std::shared_ptr<Session> self = shared_from_this();
  proto::MetadataRequest request;
  request.mutable_disconnect();
  auto reply = co_await CallOnce(epoch(), std::move(request));
  if (!reply.ok())
    LogWarning("the MDS was not told of the unmount: %s", std::string(reply.status().message()));
}

Task<void> Session::End(bool clean) {
  {
    std::lock_guard lock(mutex_);
    if (state_ != State::kConnected) clean = false;
  }
  if (clean) (void)co_await EndsWithin(clock_, kGoodbyePatience, SayGoodbye());
  std::shared_ptr<MetadataChannel> channel;
  {
    std::lock_guard lock(mutex_);
    state_ = State::kEnded;
    channel = std::move(channel_);
    keep_alive_timer_.reset();
    Wake();
  }
  if (channel != nullptr) channel->Close();
}

}  // namespace nacre::client
