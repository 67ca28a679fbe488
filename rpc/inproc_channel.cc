#include "rpc/inproc_channel.h"

#include <boost/asio/post.hpp>
#include <cerrno>
#include <unordered_map>
#include <unordered_set>

#include "rpc/convert.h"
#include "rpc/event_queue.h"

namespace nacre {
namespace {

Status Gone(const std::string& why) {
  return ErrnoError(ENOTCONN, "no connection to the MDS in this process: " + why);
}

}  // namespace

struct InprocServer::Core {
  Executor executor;
  MetadataHandler& metadata;
  ClusterHandler& cluster;
  std::mutex mutex;
  bool stopped = false;
  std::unordered_set<std::shared_ptr<Stream>> streams;
};

// Both ends share it; it ends once, for both. For the MDS it is the peer.
class InprocServer::Stream : public MetadataPeer, public std::enable_shared_from_this<Stream> {
 public:
  using Answer = OneShot<StatusOr<proto::MetadataReply>>;

  Stream(std::shared_ptr<Core> core, std::string name, const Executor& client, MetadataChannelEvents events)
      : core_(std::move(core)), name_(std::move(name)), events_(client, std::move(events)) {}

  std::string name() const override { return name_; }
  void Close() override { End("the MDS ended the connection"); }

  void Send(proto::Push push) override {
    std::lock_guard lock(mutex_);
    if (!ended_) events_.Pushed(std::move(push));
  }

  Task<StatusOr<proto::MetadataReply>> Call(proto::MetadataRequest request) {
    Answer answer;
    {
      std::lock_guard lock(mutex_);
      if (ended_) co_return Gone("it was lost or closed");
      request.set_id(next_id_++);
      pending_.emplace(request.id(), answer);
    }
    Spawn(core_->executor, Handle(shared_from_this(), std::move(request)));
    co_return co_await answer.Wait();
  }

  void CloseByClient() {
    events_.Close();
    End("it was closed by this side");
  }

  void End(const std::string& why) {
    std::unordered_map<uint64_t, Answer> pending;
    {
      std::lock_guard lock(mutex_);
      if (ended_) return;
      ended_ = true;
      pending = std::move(pending_);
      events_.Lost(Gone(why));
    }
    for (auto& [id, answer] : pending) answer.Set(Gone(why));
    {
      std::lock_guard lock(core_->mutex);
      core_->streams.erase(shared_from_this());
    }
    asio::post(core_->executor, [self = shared_from_this()] { self->core_->metadata.Disconnected(self); });
  }

 private:
  static Task<void> Handle(std::shared_ptr<Stream> self, proto::MetadataRequest request) {
    uint64_t id = request.id();
    proto::MetadataReply reply = co_await self->core_->metadata.Handle(self, std::move(request));
    reply.set_id(id);
    self->Answered(std::move(reply));
  }

  void Answered(proto::MetadataReply reply) {
    std::unique_lock lock(mutex_);
    auto pending = pending_.extract(reply.id());
    lock.unlock();
    if (!pending.empty()) pending.mapped().Set(std::move(reply));
  }

  const std::shared_ptr<Core> core_;
  const std::string name_;
  EventQueue events_;
  std::mutex mutex_;
  bool ended_ = false;
  uint64_t next_id_ = 1;
  std::unordered_map<uint64_t, Answer> pending_;
};

class InprocServer::Channel : public MetadataChannel {
 public:
  explicit Channel(std::shared_ptr<Stream> stream) : stream_(std::move(stream)) {}
  ~Channel() override { Close(); }

  Task<StatusOr<proto::MetadataReply>> Call(proto::MetadataRequest request) override {
    std::shared_ptr<Stream> stream = stream_;
    co_return co_await stream->Call(std::move(request));
  }
  void Close() override { stream_->CloseByClient(); }

 private:
  const std::shared_ptr<Stream> stream_;
};

class InprocServer::Connector : public MetadataConnector {
 public:
  Connector(std::shared_ptr<Core> core, std::string name, std::string address)
      : core_(std::move(core)), name_(std::move(name)), address_(std::move(address)) {}

  Task<StatusOr<std::shared_ptr<MetadataChannel>>> Connect(MetadataChannelEvents events, Duration) override {
    Executor executor = co_await CurrentExecutor();
    auto stream = std::make_shared<Stream>(core_, name_, executor, std::move(events));
    {
      std::lock_guard lock(core_->mutex);
      if (core_->stopped) co_return Gone("it has stopped");
      core_->streams.insert(stream);
    }
    co_return std::make_shared<Channel>(stream);
  }
  std::string address() const override { return address_; }

 private:
  const std::shared_ptr<Core> core_;
  const std::string name_, address_;
};

class InprocServer::Cluster : public ClusterChannel {
 public:
  explicit Cluster(std::shared_ptr<Core> core) : core_(std::move(core)) {}

  Task<StatusOr<proto::RegisterOssReply>> RegisterOss(proto::RegisterOssRequest request) override {
    if (stopped()) co_return Gone("it has stopped");
    co_return co_await core_->cluster.RegisterOss(std::move(request));
  }
  Task<StatusOr<proto::HeartbeatReply>> Heartbeat(proto::HeartbeatRequest request) override {
    if (stopped()) co_return Gone("it has stopped");
    co_return co_await core_->cluster.Heartbeat(std::move(request));
  }
  Task<StatusOr<proto::ClusterStatus>> GetStatus() override {
    if (stopped()) co_return Gone("it has stopped");
    proto::ClusterStatus reply = co_await core_->cluster.GetStatus();
    CO_RETURN_IF_ERROR(FromProto(reply.status()));
    co_return reply;
  }
  Task<StatusOr<proto::ReportChainReply>> ReportChain(proto::ReportChainRequest request) override {
    if (stopped()) co_return Gone("it has stopped");
    co_return co_await core_->cluster.ReportChain(std::move(request));
  }
  Task<StatusOr<proto::AdminReply>> Administer(proto::AdminRequest request) override {
    if (stopped()) co_return Gone("it has stopped");
    co_return co_await core_->cluster.Administer(std::move(request));
  }

 private:
  bool stopped() const {
    std::lock_guard lock(core_->mutex);
    return core_->stopped;
  }

  const std::shared_ptr<Core> core_;
};

InprocServer::InprocServer(Executor executor, MetadataHandler& metadata, ClusterHandler& cluster)
    : core_(new Core{std::move(executor), metadata, cluster, {}, false, {}}) {}

InprocServer::~InprocServer() { Stop(); }

std::shared_ptr<MetadataConnector> InprocServer::NewConnector(std::string name, std::string address) {
  return std::make_shared<Connector>(core_, std::move(name), std::move(address));
}

std::shared_ptr<ClusterChannel> InprocServer::NewClusterChannel() { return std::make_shared<Cluster>(core_); }

void InprocServer::Stop() {
  std::unordered_set<std::shared_ptr<Stream>> streams;
  {
    std::lock_guard lock(core_->mutex);
    core_->stopped = true;
    streams = core_->streams;
  }
  for (const auto& stream : streams) stream->End("it has stopped");
}

}  // namespace nacre
