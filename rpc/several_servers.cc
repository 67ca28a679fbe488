#include "rpc/several_servers.h"

#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <mutex>
#include <optional>

#include "rpc/convert.h"

namespace nacre {
namespace {

constexpr Duration kConnectPatience = std::chrono::seconds(3);

// Joins the errors of all servers into one, for people.
Status AllOf(const std::vector<Status>& failures) {
  return ErrnoError(ToErrno(failures.front()),
                    absl::StrJoin(failures, "; ", [](std::string* out, const Status& failure) {
                      out->append(std::string(failure.message()));
                    }));
}

// Which of several servers is to be asked. In each round all of them are asked once, those last that did not
// answer when they were asked before: a frozen one must not cost its time-out whenever a stream to another
// breaks. Thread-safe.
class Turn {
 public:
  explicit Turn(size_t servers) : away_(servers) { BeginRound(0); }

  size_t current() const {
    std::lock_guard lock(mutex_);
    return round_[asked_];
  }
  // It serves, and is the one that is asked until a stream to it fails. Then the others come first.
  void Serves(size_t server) {
    std::lock_guard lock(mutex_);
    away_[server] = false;
    if (round_[asked_] == server) serves_ = true;
  }
  // It answers that it does not serve.
  void Refused(size_t server) {
    std::lock_guard lock(mutex_);
    away_[server] = false;
    MoveOn(server);
  }
  // There is no stream to it, or not any more; `away`: because it does not answer.
  void Failed(size_t server, bool away) {
    std::lock_guard lock(mutex_);
    if (away) away_[server] = true;
    MoveOn(server);
  }

 private:
  // To the next one, unless another caller has moved on from this one already.
  void MoveOn(size_t server) {
    if (round_[asked_] != server) return;
    if (serves_ || ++asked_ == round_.size()) BeginRound((server + 1) % away_.size());
  }

  void BeginRound(size_t first) {
    asked_ = 0;
    serves_ = false;
    round_.clear();
    for (const bool away : {false, true}) {
      for (size_t n = 0; n < away_.size(); ++n) {
        const size_t server = (first + n) % away_.size();
        if (away_[server] == away) round_.push_back(server);
      }
    }
  }

  mutable std::mutex mutex_;
  std::vector<bool> away_;     // did not answer when it was asked last
  std::vector<size_t> round_;  // all of them, in the order in which they are asked
  size_t asked_ = 0;           // so many of them were in vain; the next is current
  bool serves_ = false;        // the current one
};

// A stream to one of them, which says what becomes of it.
class OneOfSeveral : public MetadataChannel {
 public:
  OneOfSeveral(std::shared_ptr<MetadataChannel> channel, std::shared_ptr<Turn> turn, size_t server)
      : channel_(std::move(channel)), turn_(std::move(turn)), server_(server) {}

  Task<StatusOr<proto::MetadataReply>> Call(proto::MetadataRequest request) override {
    return Ask(channel_, turn_, server_, unanswered_, std::move(request));
  }

  // Closing the stream while the server owes an answer means that the answer has taken too long: the server
  // is asked last from now on.
  void Close() override {
    if (unanswered_->load() > 0) turn_->Failed(server_, true);
    channel_->Close();
  }

 private:
  using Count = std::shared_ptr<std::atomic<size_t>>;

  static Task<StatusOr<proto::MetadataReply>> Ask(std::shared_ptr<MetadataChannel> channel,
                                                  std::shared_ptr<Turn> turn, size_t server, Count unanswered,
                                                  proto::MetadataRequest request) {
    const bool connects = request.has_connect();
    unanswered->fetch_add(1);
    auto reply = co_await channel->Call(std::move(request));
    unanswered->fetch_sub(1);
    if (!connects) co_return reply;
    if (!reply.ok()) {
      turn->Failed(server, false);
    } else if (IsRetryable(FromProto(reply->status()))) {
      turn->Refused(server);
    } else {
      turn->Serves(server);
    }
    co_return reply;
  }

  const std::shared_ptr<MetadataChannel> channel_;
  const std::shared_ptr<Turn> turn_;
  const size_t server_;
  const Count unanswered_ = std::make_shared<std::atomic<size_t>>(0);
};

class SeveralConnector : public MetadataConnector {
 public:
  explicit SeveralConnector(std::vector<std::shared_ptr<MetadataConnector>> connectors)
      : connectors_(std::move(connectors)), turn_(std::make_shared<Turn>(connectors_.size())) {}

  Task<StatusOr<std::shared_ptr<MetadataChannel>>> Connect(MetadataChannelEvents events,
                                                           Duration timeout) override {
    const std::shared_ptr<Turn> turn = turn_;
    const size_t server = turn->current();
    const std::shared_ptr<MetadataConnector> connector = connectors_[server];
    events.on_lost = [turn, server, lost = std::move(events.on_lost)](Status why) mutable {
      turn->Failed(server, false);
      if (lost) lost(std::move(why));
    };
    timeout = std::min(timeout, kConnectPatience);
    auto channel = co_await connector->Connect(std::move(events), timeout);
    if (!channel.ok()) {
      turn->Failed(server, true);
      co_return channel.status();
    }
    co_return std::make_shared<OneOfSeveral>(*std::move(channel), turn, server);
  }

  std::string address() const override {
    return absl::StrJoin(connectors_, ",",
                         [](std::string* out, const auto& connector) { out->append(connector->address()); });
  }

  size_t servers() const override { return connectors_.size(); }

 private:
  const std::vector<std::shared_ptr<MetadataConnector>> connectors_;
  const std::shared_ptr<Turn> turn_;
};

class SeveralClusterChannel : public ClusterChannel {
 public:
  SeveralClusterChannel(std::vector<std::shared_ptr<ClusterChannel>> channels, Clock& clock, Duration timeout)
      : channels_(std::move(channels)), clock_(clock), timeout_(timeout) {}

  Task<StatusOr<proto::RegisterOssReply>> RegisterOss(proto::RegisterOssRequest request) override {
    return Ask(&ClusterChannel::RegisterOss, std::move(request));
  }
  Task<StatusOr<proto::HeartbeatReply>> Heartbeat(proto::HeartbeatRequest request) override {
    return Ask(&ClusterChannel::Heartbeat, std::move(request));
  }
  Task<StatusOr<proto::ReportChainReply>> ReportChain(proto::ReportChainRequest request) override {
    return Ask(&ClusterChannel::ReportChain, std::move(request));
  }
  Task<StatusOr<proto::ClusterStatus>> GetStatus() override { return Ask(&ClusterChannel::GetStatus); }
  Task<StatusOr<proto::AdminReply>> Administer(proto::AdminRequest request) override {
    return Ask(&ClusterChannel::Administer, std::move(request));
  }

 private:
  template <typename Reply, typename... Request>
  using Method = Task<StatusOr<Reply>> (ClusterChannel::*)(Request...);

  template <typename Reply, typename... Request>
  Task<StatusOr<Reply>> Ask(Method<Reply, Request...> method, Request... request) {
    const Duration end = clock_.Now() + timeout_;
    const size_t first = answered_.load();
    std::vector<Status> failures;
    for (size_t n = 0; n < channels_.size(); ++n) {
      const size_t server = (first + n) % channels_.size();
      const Duration left = end - clock_.Now();
      const Duration limit = n + 1 == channels_.size() ? left : left / 2;
      auto reply = co_await AskWithin(limit, server, method, request...);
      Status status = reply.ok() ? Judge(*reply) : reply.status();
      if (reply.ok() && !IsRetryable(status)) answered_.store(server);
      if (!IsRetryable(status)) co_return reply;
      failures.push_back(std::move(status));
    }
    co_return AllOf(failures);
  }

  // A call that takes longer than the limit goes on by itself; its answer is dropped.
  template <typename Reply, typename... Request>
  Task<StatusOr<Reply>> AskWithin(Duration limit, size_t server, Method<Reply, Request...> method,
                                  Request... request) {
    OneShot<StatusOr<Reply>> answer;
    const Executor executor = co_await CurrentExecutor();
    const std::unique_ptr<TimerHandle> timer = clock_.After(executor, std::max(limit, Duration(0)), [answer] {
      answer.Set(StatusOr<Reply>(ErrnoError(ETIMEDOUT, "the MDS did not answer in time")));
    });
    Spawn(executor, AskOne(channels_[server], method, std::move(request)...),
          [answer](StatusOr<Reply> reply) { answer.Set(std::move(reply)); });
    co_return co_await answer.Wait();
  }

  template <typename Reply, typename... Request>
  static Task<StatusOr<Reply>> AskOne(std::shared_ptr<ClusterChannel> channel,
                                      Method<Reply, Request...> method, Request... request) {
    co_return co_await (channel.get()->*method)(std::move(request)...);
  }

  // The reply's own status; UNAVAILABLE for one that comes from a primary of the past.
  template <typename Reply>
  Status Judge(const Reply& reply) {
    Status status = FromProto(reply.status());
    if constexpr (requires { reply.mdt_epoch(); }) {
      uint64_t highest = epoch_.load();
      while (reply.mdt_epoch() > highest && !epoch_.compare_exchange_weak(highest, reply.mdt_epoch())) {
      }
      if (reply.mdt_epoch() != 0 && reply.mdt_epoch() < highest) {
        return ErrnoError(ENOTCONN,
                          absl::StrFormat("an MDS answered as primary of epoch %d, that of epoch %d "
                                          "has answered before",
                                          reply.mdt_epoch(), highest));
      }
    }
    return status;
  }

  const std::vector<std::shared_ptr<ClusterChannel>> channels_;
  Clock& clock_;
  const Duration timeout_;
  std::atomic<size_t> answered_{0};  // by which server the last answer was given
  std::atomic<uint64_t> epoch_{0};   // the highest that one has answered in
};

}  // namespace

StatusOr<std::vector<std::string>> SplitAddresses(const std::string& addresses) {
  std::vector<std::string> parts = absl::StrSplit(addresses, ',');
  if (parts.size() == 1) return parts;
  for (const std::string& part : parts) {
    if (!part.empty()) continue;
    return ErrnoError(EINVAL, absl::StrFormat("addresses '%s': an empty one between the commas", addresses));
  }
  return parts;
}

bool ShareServer(const std::string& addresses, const std::string& others) {
  const std::vector<std::string> a = absl::StrSplit(addresses, ','), b = absl::StrSplit(others, ',');
  return std::ranges::find_first_of(a, b) != a.end();
}

std::shared_ptr<MetadataConnector> NewSeveralConnector(
    std::vector<std::shared_ptr<MetadataConnector>> connectors) {
  return std::make_shared<SeveralConnector>(std::move(connectors));
}

std::shared_ptr<ClusterChannel> NewSeveralClusterChannel(
    std::vector<std::shared_ptr<ClusterChannel>> channels, Clock& clock, Duration timeout) {
  return std::make_shared<SeveralClusterChannel>(std::move(channels), clock, timeout);
}

}  // namespace nacre
