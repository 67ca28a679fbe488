#include "tests/sim/network.h"

#include <boost/asio/post.hpp>
#include <cerrno>

namespace nacre::sim {
namespace {

constexpr Duration kConnectWait = 3s;

Duration UpTo(Random& random, Duration limit) {
  return Duration(static_cast<int64_t>(random.Below(static_cast<uint64_t>(limit.count()) + 1)));
}

}  // namespace

Duration Network::Delay() {
  Duration limit = Chance(faults_.slow_one_in) ? faults_.max_slow : faults_.max_delay;
  return 5us + UpTo(world_.random(), limit);
}

void Network::Cut(int from, int to) {
  if (!cuts_.insert({from, to}).second) return;
  world_.Trace("cut %d -> %d", from, to);
}

void Network::Heal() {
  world_.Trace("heal");
  cuts_.clear();
  for (auto& weak : std::vector(connections_)) {
    if (auto connection = weak.lock()) connection->Healed();
  }
}

void Network::Break(int one, int other) {
  for (auto& weak : std::vector(connections_)) {
    auto connection = weak.lock();
    if (!connection) continue;
    int client = connection->process(kClientSide)->node(), server = connection->process(kServerSide)->node();
    if ((client == one && server == other) || (client == other && server == one)) connection->Break();
  }
}

Status Network::Add(const std::string& address, Service service) {
  Process* process = service.process;
  if (!services_.emplace(address, std::move(service)).second) {
    return ErrnoError(EADDRINUSE, absl::StrFormat("%s: somebody listens there already", address));
  }
  process->AtDeath([this, address, process] {
    if (Find(address, process) != nullptr) Remove(address);
  });
  return OkStatus();
}

void Network::Remove(const std::string& address) {
  services_.erase(address);
  for (auto& weak : std::vector(connections_)) {
    auto connection = weak.lock();
    if (connection && connection->address() == address) connection->Break();
  }
}

const Service* Network::Find(const std::string& address, const Process* process) const {
  auto found = services_.find(address);
  if (found == services_.end() || (process != nullptr && found->second.process != process)) return nullptr;
  return &found->second;
}

Task<StatusOr<ConnectionPtr>> Network::Dial(Process* process, std::string address, Duration timeout) {
  co_await world_.clock().Sleep(Delay());
  const Service* service = Find(address, nullptr);
  if (service == nullptr)
    co_return ErrnoError(ECONNREFUSED, absl::StrFormat("%s: nobody listens there", address));
  const int here = process->node(), there = service->process->node();
  if (IsCut(here, there) || IsCut(there, here)) {
    co_await world_.clock().Sleep(std::min(timeout, kConnectWait));
    co_return ErrnoError(ETIMEDOUT, absl::StrFormat("%s: no answer", address));
  }
  auto connection = std::make_shared<Connection>(*this, process, service->process, address);
  std::erase_if(connections_, [](auto& weak) { return weak.expired(); });
  connections_.push_back(connection);
  for (Side side : {kClientSide, kServerSide}) {
    connection->process(side)->AtDeath([weak = std::weak_ptr(connection), side] {
      if (auto connection = weak.lock()) connection->Died(side);
    });
  }
  co_return connection;
}

// --- one connection ---

Connection::Connection(Network& network, Process* client, Process* server, std::string address)
    : network_(network), address_(std::move(address)), ends_{{client}, {server}} {}

void Connection::Send(Side from, bool ordered, absl::AnyInvocable<void()> deliver) {
  const Side to = from == kClientSide ? kServerSide : kClientSide;
  if (broken_) return;  // swallowed: this side has not noticed yet
  if (network_.Chance(network_.faults_.break_one_in)) {
    const bool arrives = network_.world_.random().OneIn(2);
    if (arrives) Schedule(to, ordered, std::move(deliver));
    Break();
    return;
  }
  if (!network_.IsCut(ends_[from].process->node(), ends_[to].process->node())) {
    Schedule(to, ordered, std::move(deliver));
    return;
  }
  held_.push_back({to, ordered, std::move(deliver)});
  if (held_.size() > 1) return;
  network_.world_.clock().At(1s + UpTo(network_.world_.random(), 5s), [self = shared_from_this()] {
    if (!self->held_.empty()) self->Break();
  });
}

void Connection::Schedule(Side to, bool ordered, absl::AnyInvocable<void()> deliver) {
  SimClock& clock = network_.world_.clock();
  Duration at = clock.Now() + network_.Delay();
  if (ordered) at = ends_[to].last_ordered = std::max(at, ends_[to].last_ordered);
  clock.At(at - clock.Now(),
           [self = shared_from_this(), to, ordered, deliver = std::move(deliver)]() mutable {
             self->Arrive(to, ordered, std::move(deliver));
           });
}

void Connection::Arrive(Side to, bool ordered, absl::AnyInvocable<void()> deliver) {
  if (!ends_[to].process->alive()) return;
  if (!broken_) return Enqueue(to, std::move(deliver));
  if (!ends_[to].late_messages || to == kClientSide) return;
  if (ordered) {
    if (!ends_[to].noticed) Enqueue(to, std::move(deliver));
    return;
  }
  // The receiving process took it off the wire long ago and gets round to it only now.
  auto late = [self = shared_from_this(), to, deliver = std::move(deliver)]() mutable {
    if (self->ends_[to].process->alive()) self->Enqueue(to, std::move(deliver));
  };
  network_.world_.clock().At(UpTo(network_.world_.random(), 3s), std::move(late));
}

// Handlers of one process run in any order; what a connection delivers does not.
void Connection::Enqueue(Side to, absl::AnyInvocable<void()> function) {
  ends_[to].inbox.push_back(std::move(function));
  asio::post(ends_[to].process->executor(), [self = shared_from_this(), to] {
    auto next = std::move(self->ends_[to].inbox.front());
    self->ends_[to].inbox.pop_front();
    next();
  });
}

void Connection::Break() {
  if (broken_) return;
  World& world = network_.world_;
  world.Trace("break %s -- %s", ends_[0].process->name(), ends_[1].process->name());
  broken_ = true;
  held_.clear();
  for (Side side : {kClientSide, kServerSide}) {
    ends_[side].late_messages = world.random().OneIn(2);
    const Duration limit = world.random().OneIn(4) ? Duration(2s) : Duration(10ms);
    world.clock().At(UpTo(world.random(), limit), [self = shared_from_this(), side] { self->Notice(side); });
  }
}

void Connection::Notice(Side side) {
  End& end = ends_[side];
  end.noticed = true;
  if (!end.process->alive() || !end.on_lost) return;
  Enqueue(side, std::move(end.on_lost));
  end.on_lost = nullptr;
}

void Connection::Died(Side side) {
  Break();
  ends_[side].on_lost = nullptr;
  ends_[side].inbox.clear();
}

void Connection::Healed() {
  auto held = std::move(held_);
  held_.clear();
  for (Held& message : held) Schedule(message.to, message.ordered, std::move(message.deliver));
}

}  // namespace nacre::sim
