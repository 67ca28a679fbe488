// The simulated network: connections between processes, with delay, loss, partitions and late copies, all
// from the seed.
//
// A connection carries messages both ways. It does no more than TCP under a real transport may do: a message
// arrives once, late or never; a connection that breaks is noticed by each side in its own time; what was
// under way when it broke may still arrive (at a process that has not gone). Single-threaded, like the whole
// simulation.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "rpc/cluster_channel.h"
#include "rpc/copy_channel.h"
#include "rpc/metadata_channel.h"
#include "tests/sim/world.h"
#include "transport/transport.h"

namespace nacre::sim {

struct NetworkFaults {
  Duration max_delay = 300us;  // of an ordinary message
  uint64_t slow_one_in = 40;   // a message takes up to max_slow instead
  Duration max_slow = 30ms;
  uint64_t break_one_in = 0;    // a message at which its connection breaks; 0: none does
  uint64_t corrupt_one_in = 0;  // a put or get in which a byte is changed on the way; 0: none
};

class Connection;
using ConnectionPtr = std::shared_ptr<Connection>;

// The process that listens at an address, and its handlers.
struct Service {
  Process* process = nullptr;
  std::shared_ptr<CallHandler> calls;  // a Transport's listener
  MetadataHandler* metadata = nullptr;
  ClusterHandler* cluster = nullptr;
  CopyHandler* copies = nullptr;
};

class Network {
 public:
  explicit Network(World& world) : world_(world) {}
  ~Network() { world_.KillAll(); }  // nobody may use it any more

  World& world() { return world_; }
  NetworkFaults& faults() { return faults_; }

  // From now on nothing gets from one node to the other (one way). Connections across break after a while.
  void Cut(int from, int to);
  void Heal();
  bool IsCut(int from, int to) const { return cuts_.contains({from, to}); }
  // Breaks every connection between the two nodes.
  void Break(int one, int other);

  // A service ends with its process, or by Remove.
  Status Add(const std::string& address, Service service);
  void Remove(const std::string& address);

  // Connects; takes time. UNAVAILABLE: nothing listens, or the network does not let it through within the
  // timeout.
  Task<StatusOr<ConnectionPtr>> Dial(Process* process, std::string address, Duration timeout);
  // Returns the service at the address, if it is (still) this process's.
  const Service* Find(const std::string& address, const Process* process) const;

  Duration Delay();
  // Not twice within a second, so that a repetition gets through.
  bool MayCorrupt() {
    if (world_.clock().Now() < next_corruption_) return false;
    next_corruption_ = world_.clock().Now() + 1s;
    return true;
  }
  bool Chance(uint64_t one_in) { return one_in != 0 && world_.random().OneIn(one_in); }

 private:
  friend class Connection;

  World& world_;
  NetworkFaults faults_;
  std::set<std::pair<int, int>> cuts_;
  Duration next_corruption_{0};
  std::map<std::string, Service> services_;
  std::vector<std::weak_ptr<Connection>> connections_;
};

enum Side { kClientSide = 0, kServerSide = 1 };

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Network& network, Process* client, Process* server, std::string address);

  // Runs the function on the other side's process, later. Ordered messages of one direction arrive in order.
  void Send(Side from, bool ordered, absl::AnyInvocable<void()> deliver);

  // Called once on that side's process when it notices the loss, after the last ordered message.
  void OnLost(Side side, absl::AnyInvocable<void()> function) { ends_[side].on_lost = std::move(function); }

  void Break();
  bool broken() const { return broken_; }
  bool noticed(Side side) const { return ends_[side].noticed; }
  Process* process(Side side) const { return ends_[side].process; }
  const std::string& address() const { return address_; }
  Network& network() { return network_; }

 private:
  friend class Network;
  struct End {
    Process* process;
    bool noticed = false;
    bool late_messages = false;  // what was under way to this side when it broke arrives all the same
    Duration last_ordered{0};
    std::deque<absl::AnyInvocable<void()>> inbox;
    absl::AnyInvocable<void()> on_lost;
  };
  struct Held {
    Side to;
    bool ordered;
    absl::AnyInvocable<void()> deliver;
  };

  void Schedule(Side to, bool ordered, absl::AnyInvocable<void()> deliver);
  void Arrive(Side to, bool ordered, absl::AnyInvocable<void()> deliver);
  void Enqueue(Side to, absl::AnyInvocable<void()> function);
  void Notice(Side side);
  void Died(Side side);
  void Healed();

  Network& network_;
  const std::string address_;
  End ends_[2];
  bool broken_ = false;
  std::deque<Held> held_;  // by a cut
};

// The data plane of one process.
std::unique_ptr<Transport> NewTransport(Network& network, Process* process);
std::shared_ptr<MetadataConnector> NewMetadataConnector(Network& network, Process* process,
                                                        std::string address);
std::shared_ptr<ClusterChannel> NewClusterChannel(Network& network, Process* process, std::string address);
std::shared_ptr<CopyConnector> NewCopyConnector(Network& network, Process* process);

}  // namespace nacre::sim
