// The metadata stream and the cluster service over simulated connections.

#include <cerrno>

#include "tests/sim/network.h"

namespace nacre::sim {
namespace {

constexpr Duration kClusterTimeout = 5s;
constexpr uint64_t kLongestPreemption = 20'000'000;  // ns

Status Lost() { return ErrnoError(ENOTCONN, "the stream to the MDS is lost"); }

// The client's end, apart from the channel object, which may go earlier.
struct ClientEnd {
  ConnectionPtr connection;
  MetadataChannelEvents events;
  bool ended = false;
  uint64_t next_id = 1;
  std::map<uint64_t, OneShot<StatusOr<proto::MetadataReply>>> pending;

  void End() {
    ended = true;
    for (auto& [id, answer] : std::exchange(pending, {})) answer.Set(Lost());
  }
};
using ClientEndPtr = std::shared_ptr<ClientEnd>;

class ServerEnd : public MetadataPeer {
 public:
  ServerEnd(ConnectionPtr connection, ClientEndPtr client)
      : connection_(std::move(connection)), client_(client) {}

  void Send(proto::Push push) override {
    if (closed_) return;
    Note("<=", push);
    connection_->Send(kServerSide, true, [client = client_, push = std::move(push)]() mutable {
      if (!client->ended && client->events.on_push) client->events.on_push(std::move(push));
    });
  }

  void Close() override {
    if (std::exchange(closed_, true)) return;
    connection_->Send(kServerSide, true, [connection = connection_] { connection->Break(); });
  }

  std::string name() const override { return connection_->process(kClientSide)->name(); }
  Network& network() { return connection_->network(); }

  // A message for people who read the trace. "->" comes to the server, "<-" answers, "<=" is pushed.
  void Note(const char* way, const google::protobuf::Message& message) {
    const Process* server = connection_->process(kServerSide);
    network().world().Note([&] {
      return absl::StrFormat("  %s %s %s: %s", name(), way, server->name(), message.ShortDebugString());
    });
  }

  void Answer(proto::MetadataReply reply) {
    if (closed_) return;
    Note("<-", reply);
    connection_->Send(kServerSide, true, [client = client_, reply = std::move(reply)]() mutable {
      auto pending = client->pending.extract(reply.id());
      if (!pending.empty()) pending.mapped().Set(std::move(reply));
    });
  }

 private:
  const ConnectionPtr connection_;
  const ClientEndPtr client_;
  bool closed_ = false;
};

// A thread that is preempted with a reply in its hands: what others send meanwhile comes before it.
Task<void> MaybeBePreempted(Network& network) {
  World& world = network.world();
  if (!world.random().OneIn(16)) co_return;
  co_await world.clock().Sleep(Duration(static_cast<int64_t>(world.random().Below(kLongestPreemption))));
}

Task<void> HandleOne(MetadataHandler* handler, std::shared_ptr<ServerEnd> peer,
                     proto::MetadataRequest request) {
  const uint64_t id = request.id();
  peer->Note("->", request);
  auto reply = co_await handler->Handle(peer, std::move(request));
  co_await MaybeBePreempted(peer->network());
  reply.set_id(id);
  peer->Answer(std::move(reply));
}

class SimChannel : public MetadataChannel {
 public:
  SimChannel(ClientEndPtr client, std::shared_ptr<ServerEnd> server)
      : client_(std::move(client)), server_(std::move(server)) {}
  ~SimChannel() override { Close(); }

  Task<StatusOr<proto::MetadataReply>> Call(proto::MetadataRequest request) override {
    if (client_->ended) co_return Lost();
    OneShot<StatusOr<proto::MetadataReply>> answer;
    request.set_id(client_->next_id++);
    client_->pending.emplace(request.id(), answer);
    auto deliver = [connection = client_->connection, server = server_,
                    request = std::move(request)]() mutable {
      const Service* service =
          connection->network().Find(connection->address(), connection->process(kServerSide));
      if (service == nullptr) return connection->Break();
      Spawn(service->process->executor(), HandleOne(service->metadata, server, std::move(request)));
    };
    client_->connection->Send(kClientSide, true, std::move(deliver));
    co_return co_await answer.Wait();
  }

  void Close() override {
    if (client_->ended) return;
    client_->End();
    client_->connection->Break();
  }

 private:
  const ClientEndPtr client_;
  const std::shared_ptr<ServerEnd> server_;
};

class SimConnector : public MetadataConnector {
 public:
  SimConnector(Network& network, Process* process, std::string address)
      : network_(network), process_(process), address_(std::move(address)) {}

  Task<StatusOr<std::shared_ptr<MetadataChannel>>> Connect(MetadataChannelEvents events,
                                                           Duration timeout) override {
    auto client = std::make_shared<ClientEnd>();
    client->events = std::move(events);
    auto connection = co_await network_.Dial(process_, address_, timeout);
    if (!connection.ok()) co_return connection.status();
    client->connection = *connection;
    auto server = std::make_shared<ServerEnd>(*connection, client);
    (*connection)->OnLost(kClientSide, [weak = std::weak_ptr(client)] {
      auto client = weak.lock();
      if (!client || client->ended) return;
      client->End();
      if (client->events.on_lost) client->events.on_lost(Lost());
    });
    (*connection)->OnLost(kServerSide, [connection = std::weak_ptr(*connection), server] {
      auto alive = connection.lock();
      const Service* service =
          alive ? alive->network().Find(alive->address(), alive->process(kServerSide)) : nullptr;
      if (service != nullptr) service->metadata->Disconnected(server);
    });
    co_return std::make_shared<SimChannel>(client, server);
  }
  std::string address() const override { return address_; }

 private:
  Network& network_;
  Process* const process_;
  const std::string address_;
};

class SimClusterChannel : public ClusterChannel {
 public:
  SimClusterChannel(Network& network, Process* process, std::string address)
      : network_(network), process_(process), address_(std::move(address)) {}

  Task<StatusOr<proto::RegisterOssReply>> RegisterOss(proto::RegisterOssRequest request) override {
    auto ask = [](ClusterHandler& handler, proto::RegisterOssRequest request) {
      return handler.RegisterOss(std::move(request));
    };
    return Unary<proto::RegisterOssReply, proto::RegisterOssRequest>(ask, std::move(request));
  }
  Task<StatusOr<proto::HeartbeatReply>> Heartbeat(proto::HeartbeatRequest request) override {
    auto ask = [](ClusterHandler& handler, proto::HeartbeatRequest request) {
      return handler.Heartbeat(std::move(request));
    };
    return Unary<proto::HeartbeatReply, proto::HeartbeatRequest>(ask, std::move(request));
  }
  Task<StatusOr<proto::ClusterStatus>> GetStatus() override {
    auto ask = [](ClusterHandler& handler, Unit) { return handler.GetStatus(); };
    return Unary<proto::ClusterStatus, Unit>(ask, Unit{});
  }
  Task<StatusOr<proto::ReportChainReply>> ReportChain(proto::ReportChainRequest request) override {
    auto ask = [](ClusterHandler& handler, proto::ReportChainRequest request) {
      return handler.ReportChain(std::move(request));
    };
    return Unary<proto::ReportChainReply, proto::ReportChainRequest>(ask, std::move(request));
  }
  Task<StatusOr<proto::AdminReply>> Administer(proto::AdminRequest request) override {
    auto ask = [](ClusterHandler& handler, proto::AdminRequest request) {
      return handler.Administer(std::move(request));
    };
    return Unary<proto::AdminReply, proto::AdminRequest>(ask, std::move(request));
  }

 private:
  template <typename Reply, typename Request>
  using Ask = Task<Reply> (*)(ClusterHandler&, Request);

  template <typename Reply, typename Request>
  static Task<void> Serve(ConnectionPtr connection, ClusterHandler* handler, Ask<Reply, Request> ask,
                          Request request, OneShot<StatusOr<Reply>> done) {
    Reply reply = co_await ask(*handler, std::move(request));
    connection->Send(kServerSide, true,
                     [done, reply = std::move(reply)]() mutable { done.Set(std::move(reply)); });
  }

  template <typename Reply, typename Request>
  Task<StatusOr<Reply>> Unary(Ask<Reply, Request> ask, Request request) {
    auto dialled = co_await network_.Dial(process_, address_, kClusterTimeout);
    if (!dialled.ok()) co_return dialled.status();
    ConnectionPtr connection = *std::move(dialled);
    OneShot<StatusOr<Reply>> done;
    connection->OnLost(kClientSide, [done] { done.Set(Lost()); });
    auto timer = network_.world().clock().After(process_->executor(), kClusterTimeout, [done] {
      done.Set(ErrnoError(ETIMEDOUT, "no answer from the MGS"));
    });
    auto deliver = [connection, ask, request = std::move(request), done]() mutable {
      const Service* service =
          connection->network().Find(connection->address(), connection->process(kServerSide));
      if (service == nullptr) return connection->Break();
      Spawn(service->process->executor(),
            Serve<Reply, Request>(connection, service->cluster, ask, std::move(request), done));
    };
    connection->Send(kClientSide, true, std::move(deliver));
    co_return co_await done.Wait();
  }

  Network& network_;
  Process* const process_;
  const std::string address_;
};

}  // namespace

std::shared_ptr<MetadataConnector> NewMetadataConnector(Network& network, Process* process,
                                                        std::string address) {
  return std::make_shared<SimConnector>(network, process, std::move(address));
}

std::shared_ptr<ClusterChannel> NewClusterChannel(Network& network, Process* process, std::string address) {
  return std::make_shared<SimClusterChannel>(network, process, std::move(address));
}

}  // namespace nacre::sim
