// Coordinators over an etcd in memory, for tests and the simulation: etcd's rules for revisions and
// transactions, and the failures that may come between it and its clients. The same seed does the same.
//
// Requests and answers travel as messages of their own, so a transaction may be carried out after its client
// has given up or died. Thread-safe.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "common/random.h"
#include "server/coordination/coordinator.h"

namespace nacre::coordination {

// One in so many; 0: never.
struct MemEtcdFaults {
  Duration max_delay = 1ms;  // of a message, either way
  uint64_t lose_request_one_in = 0;
  uint64_t lose_answer_one_in = 0;
  // A transaction takes up to so long to get there; its client is told nothing meanwhile.
  uint64_t late_one_in = 0;
  Duration max_late = 10s;
  uint64_t lose_hint_one_in = 0;  // without a gap being told
  Duration max_hint_delay = 1ms;
};

class MemEtcd {
 public:
  // Messages arrive on the executor; `random` is used by nobody else. All three outlive this.
  MemEtcd(Clock& clock, Random& random, Executor executor);
  ~MemEtcd();
  MemEtcd(const MemEtcd&) = delete;
  MemEtcd& operator=(const MemEtcd&) = delete;

  // Of a client of this name, whose clock it goes by; both and this outlive it. Several may have one name.
  std::unique_ptr<Coordinator> NewClient(std::string name, Clock& clock);

  void SetFaults(MemEtcdFaults faults);

  // For so long nothing is decided. Of the transactions that are under way or come meanwhile some are
  // refused, some are lost, and some are carried out when there is a leader again; their clients know nothing
  // of any. Watches break, half of them.
  void LoseLeader(Duration time);

  // Nothing gets from or to the clients of this name; what was carried out for them stays.
  void Cut(const std::string& client);
  void Heal(const std::string& client);

  // Forgets what was changed when: watches of changes before have a gap.
  void Compact();

  // All that there is, as nobody's reading.
  std::map<std::string, Entry> Contents() const;
  int64_t revision() const;
  // Nothing is on its way to or from a client: what was asked for is carried out, or never will be.
  bool Idle() const;

 private:
  class Service;
  class Client;
  class ClientWatch;

  const std::shared_ptr<Service> service_;
};

}  // namespace nacre::coordination
