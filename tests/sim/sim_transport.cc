// Transport over simulated connections.

#include <cerrno>
#include <cstring>

#include "proto/object.pb.h"
#include "tests/sim/network.h"

namespace nacre::sim {
namespace {

class Region : public MemoryRegion {
 public:
  Region(std::byte* data, size_t size) : MemoryRegion(data, size) {}
};

// One call as both sides see it.
struct CallState {
  CallRequest request;
  uint64_t memory_size = 0;
  bool memory_open = true;  // the caller still lends its memory
  OneShot<StatusOr<std::string>> done;

  // The places behind [offset, offset + length) of the flat memory, in order.
  std::vector<std::span<std::byte>> Pieces(uint64_t offset, uint64_t length) const {
    std::vector<std::span<std::byte>> pieces;
    for (const MemorySpan& span : request.memory) {
      if (offset >= span.length) {
        offset -= span.length;
        continue;
      }
      const uint64_t take = std::min(length, span.length - offset);
      if (take > 0) pieces.emplace_back(span.data() + offset, take);
      length -= take;
      offset = 0;
    }
    return pieces;
  }
};
using CallPtr = std::shared_ptr<CallState>;

struct Link {
  ConnectionPtr connection;
  std::map<uint64_t, CallPtr> pending;
  uint64_t next = 1;
};
using LinkPtr = std::shared_ptr<Link>;

void CopyFlat(std::vector<std::span<std::byte>> to, std::vector<std::span<const std::byte>> from,
              uint64_t limit) {
  size_t in = 0, out = 0;
  while (limit > 0 && in < from.size() && out < to.size()) {
    const size_t n = std::min({from[in].size(), to[out].size(), static_cast<size_t>(limit)});
    if (n > 0) std::memcpy(to[out].data(), from[in].data(), n);
    from[in] = from[in].subspan(n);
    to[out] = to[out].subspan(n);
    limit -= n;
    if (from[in].empty()) ++in;
    if (to[out].empty()) ++out;
  }
}

class Incoming : public IncomingCall {
 public:
  Incoming(LinkPtr link, CallPtr call, std::shared_ptr<CallHandler> handler)
      : link_(std::move(link)),
        call_(std::move(call)),
        handler_(std::move(handler)),
        body_(call_->request.body) {}

  const std::string& body() const override { return body_; }
  CallMemory memory_kind() const override { return call_->request.kind; }
  uint64_t memory_size() const override { return call_->memory_size; }

  Task<Status> Put(uint64_t offset, std::span<const std::span<const std::byte>> buffers) override {
    std::vector<std::span<const std::byte>> from(buffers.begin(), buffers.end());
    uint64_t total = 0;
    for (auto& piece : from) total += piece.size();
    CO_RETURN_IF_ERROR(Check(CallMemory::kPutTarget, offset, total));
    CO_RETURN_IF_ERROR(co_await Move());
    auto to = call_->Pieces(offset, total);
    const bool breaks = network().Chance(network().faults().break_one_in);
    CopyFlat(to, std::move(from), breaks ? network().world().random().Below(total + 1) : total);
    if (breaks) co_return Broken();
    Corrupt(to);
    co_return OkStatus();
  }

  Task<Status> Get(uint64_t offset, std::span<const std::span<std::byte>> buffers) override {
    std::vector<std::span<std::byte>> to(buffers.begin(), buffers.end());
    uint64_t total = 0;
    for (auto& piece : to) total += piece.size();
    CO_RETURN_IF_ERROR(Check(CallMemory::kGetSource, offset, total));
    CO_RETURN_IF_ERROR(co_await Move());
    auto pieces = call_->Pieces(offset, total);
    std::vector<std::span<const std::byte>> from(pieces.begin(), pieces.end());
    const bool breaks = network().Chance(network().faults().break_one_in);
    CopyFlat(to, std::move(from), breaks ? network().world().random().Below(total + 1) : total);
    if (breaks) co_return Broken();
    Corrupt(to);
    co_return OkStatus();
  }

  Task<Status> Reply(std::string body) override {
    network().world().Note([&] {
      proto::ObjectReply reply;
      reply.ParseFromString(body);
      return absl::StrFormat("%s <- %s: %s", link_->connection->process(kClientSide)->name(),
                             link_->connection->process(kServerSide)->name(),
                             reply.status().ShortDebugString());
    });
    auto deliver = [call = call_, body = std::move(body)]() mutable { call->done.Set(std::move(body)); };
    link_->connection->Send(kServerSide, false, std::move(deliver));
    if (link_->connection->broken()) co_return Lost();
    co_return OkStatus();
  }

 private:
  Network& network() { return link_->connection->network(); }
  Status Lost() const { return ErrnoError(ECONNRESET, "the connection to the caller is lost"); }
  Status Broken() {
    link_->connection->Break();
    return Lost();
  }

  Status Check(CallMemory kind, uint64_t offset, uint64_t length) const {
    if (call_->request.kind == kind && offset <= call_->memory_size &&
        length <= call_->memory_size - offset) {
      return OkStatus();
    }
    return ErrnoError(EINVAL, absl::StrFormat("%d bytes at %d of the caller's memory of %d bytes", length,
                                              offset, call_->memory_size));
  }

  // The time that the bytes take; they get through once no cut is in the way.
  Task<Status> Move() {
    Connection& connection = *link_->connection;
    const int client = connection.process(kClientSide)->node(),
              server = connection.process(kServerSide)->node();
    co_await network().world().clock().Sleep(network().Delay());
    while (network().IsCut(client, server) || network().IsCut(server, client)) {
      if (connection.broken() || !call_->memory_open) break;
      co_await network().world().clock().Sleep(100ms);
    }
    if (connection.broken() || !call_->memory_open) co_return Lost();
    co_return OkStatus();
  }

  void Corrupt(const std::vector<std::span<std::byte>>& pieces) {
    if (pieces.empty() || !network().Chance(network().faults().corrupt_one_in)) return;
    if (!network().MayCorrupt()) return;
    Random& random = network().world().random();
    auto piece = pieces[random.Below(pieces.size())];
    if (piece.empty()) return;
    network().world().Trace("corrupt a byte");
    piece[random.Below(piece.size())] ^= std::byte{0x10};
  }

  const LinkPtr link_;
  const CallPtr call_;
  const std::shared_ptr<CallHandler> handler_;  // lives as long as the coroutine it started
  const std::string body_;
};

class SimPeer : public Peer {
 public:
  SimPeer(Network& network, Process* process, std::string address)
      : network_(network), process_(process), address_(std::move(address)) {}
  ~SimPeer() override { Close(); }

  Task<StatusOr<std::string>> Call(CallRequest request, Duration timeout) override {
    if (request.body.size() > kMaxBodySize) {
      co_return ErrnoError(EMSGSIZE, absl::StrFormat("a request of %d bytes", request.body.size()));
    }
    auto call = std::make_shared<CallState>();
    for (const MemorySpan& span : request.memory) call->memory_size += span.length;
    call->request = std::move(request);
    LinkPtr link = link_;
    if (closed_) co_return Closed();
    if (IsGivenUp(call->request.given_up)) co_return GivenUp();
    if (link == nullptr || link->connection->noticed(kClientSide)) {
      auto connection = co_await network_.Dial(process_, address_, timeout);
      if (!connection.ok()) co_return connection.status();
      if (closed_) co_return Closed();
      link = link_ = NewLink(*std::move(connection));
    }
    CallGuard guard(link, call);
    if (IsGivenUp(call->request.given_up)) co_return GivenUp();
    auto timer = network_.world().clock().After(process_->executor(), timeout, [call] {
      call->done.Set(ErrnoError(ETIMEDOUT, "no reply within the call's timeout"));
    });
    link->connection->Send(kClientSide, false, [link, call] { Arrived(link, call); });
    co_return co_await call->done.Wait();
  }

  PathInfo path() const override { return {"sim", "everything is simulated"}; }
  std::string address() const override { return address_; }

  void EndGivenUp() override {
    if (link_ == nullptr) return;
    for (auto& [id, call] : link_->pending) {
      if (IsGivenUp(call->request.given_up)) call->done.Set(GivenUp());
    }
  }

  void Close() override {
    closed_ = true;
    if (link_ == nullptr) return;
    link_->connection->Break();
    FailAll(*link_, Closed());
  }

 private:
  // Ends the loan of the memory however the call's coroutine ends.
  class CallGuard {
   public:
    CallGuard(LinkPtr link, CallPtr call)
        : link_(std::move(link)), call_(std::move(call)), id_(link_->next++) {
      link_->pending.emplace(id_, call_);
    }
    ~CallGuard() {
      call_->memory_open = false;
      link_->pending.erase(id_);
    }

   private:
    const LinkPtr link_;
    const CallPtr call_;
    const uint64_t id_;
  };

  Status GivenUp() const { return ErrnoError(ETIMEDOUT, address_ + ": the call was given up"); }
  Status Closed() const { return ErrnoError(ECONNABORTED, address_ + ": this side has closed"); }

  static void FailAll(Link& link, const Status& status) {
    for (auto& [id, call] : link.pending) call->done.Set(status);
  }

  static LinkPtr NewLink(ConnectionPtr connection) {
    auto link = std::make_shared<Link>();
    link->connection = connection;
    connection->OnLost(kClientSide, [weak = std::weak_ptr(link)] {
      if (auto link = weak.lock()) FailAll(*link, ErrnoError(ECONNRESET, "the connection is lost"));
    });
    return link;
  }

  static void Arrived(const LinkPtr& link, const CallPtr& call) {
    Connection& connection = *link->connection;
    const Service* service = connection.network().Find(connection.address(), connection.process(kServerSide));
    if (service == nullptr || !service->calls) return connection.Break();
    connection.network().world().Note([&] {
      proto::ObjectRequest request;
      request.ParseFromString(call->request.body);
      return absl::StrFormat("%s -> %s: %s", connection.process(kClientSide)->name(),
                             service->process->name(), request.ShortDebugString().substr(0, 200));
    });
    auto incoming = std::make_shared<Incoming>(link, call, service->calls);
    Spawn(service->process->executor(), (*service->calls)(std::move(incoming)));
  }

  Network& network_;
  Process* const process_;
  const std::string address_;
  LinkPtr link_;
  bool closed_ = false;
};

class SimListener : public Listener {
 public:
  SimListener(Network& network, Process* process, std::string address)
      : network_(network), process_(process), address_(std::move(address)) {}
  ~SimListener() override {
    if (network_.Find(address_, process_) != nullptr) network_.Remove(address_);
  }
  std::string address() const override { return address_; }

 private:
  Network& network_;
  Process* const process_;
  const std::string address_;
};

class SimTransport : public Transport {
 public:
  SimTransport(Network& network, Process* process) : network_(network), process_(process) {}

  StatusOr<std::shared_ptr<MemoryRegion>> Register(std::byte* data, size_t size) override {
    return std::make_shared<Region>(data, size);
  }
  StatusOr<std::shared_ptr<Peer>> Connect(const std::string& address) override {
    return std::make_shared<SimPeer>(network_, process_, address);
  }
  StatusOr<std::unique_ptr<Listener>> Listen(const std::string& address, CallHandler handler) override {
    Service service;
    service.process = process_;
    service.calls = std::make_shared<CallHandler>(std::move(handler));
    RETURN_IF_ERROR(network_.Add(address, std::move(service)));
    return std::make_unique<SimListener>(network_, process_, address);
  }

 private:
  Network& network_;
  Process* const process_;
};

}  // namespace

std::unique_ptr<Transport> NewTransport(Network& network, Process* process) {
  return std::make_unique<SimTransport>(network, process);
}

}  // namespace nacre::sim
