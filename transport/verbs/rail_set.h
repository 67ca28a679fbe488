// The rails that a transport has open: which one serves a connection, opening it when it is first needed, and
// letting go of those that have failed so that their device can go. Thread-safe.
#pragma once

#include <atomic>
#include <boost/asio/thread_pool.hpp>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "common/clock.h"
#include "common/task.h"
#include "transport/verbs/channel.h"
#include "transport/verbs/rail.h"
#include "transport/verbs/regions.h"

namespace nacre::verbs {

class RailSet : public std::enable_shared_from_this<RailSet> {
 public:
  static std::shared_ptr<RailSet> Make(Executor executor, Clock& clock, const RailOptions& options) {
    return std::shared_ptr<RailSet>(new RailSet(std::move(executor), clock, options));
  }

  // The ports that can be rails, as they were a second ago at most. UNAVAILABLE: why there are none now.
  StatusOr<std::vector<PortInfo>> Ports();
  // Whether there were any a second ago, or a little longer.
  bool HasPorts();

  // UNAVAILABLE: the port cannot be used (any more).
  StatusOr<std::shared_ptr<Rail>> Open(const PortInfo& port);

  // The rail for a connection over this local IPv4 address (host order; 0: not known), of the link layer that
  // the other side uses (none: not known yet). UNAVAILABLE: why there is none.
  StatusOr<std::shared_ptr<Rail>> Choose(std::optional<LinkLayer> link, uint32_t local_ipv4);
  // The rail at the port with this GID.
  StatusOr<std::shared_ptr<Rail>> Choose(LinkLayer link, const Gid& gid);

  // Whether this machine has a port that could be a rail, seen afresh: the reason if not.
  static Status Look();

  // Joins a channel to the other end without holding up the caller's thread. UNAVAILABLE: also when too many
  // are being joined already.
  static Task<Status> Join(std::shared_ptr<RailSet> self, std::shared_ptr<Channel> channel, Endpoint remote);

  // Registers the process's own memory with the rail's device likewise, which may take seconds.
  static Task<Status> RegisterOwn(std::shared_ptr<RailSet> self, std::shared_ptr<Rail> rail);

  // Registers the memory of a call with a device likewise, which stays registered at least as long as what is
  // returned. Errors as RegionTable::FindSpan; DEADLINE_EXCEEDED: it is not done in time, and goes on.
  static Task<StatusOr<std::vector<MemoryKeys>>> RegisterMemory(std::shared_ptr<RailSet> self,
                                                                std::shared_ptr<Domain> domain,
                                                                std::vector<MemorySpan> memory,
                                                                Duration deadline);

  // Registers the process's own memory, if it has any, with the devices of all ports that are there now,
  // beside everything else: so that the first client need not wait for it.
  void Prepare();

  // Waits for what is being joined; Join fails from now on, and nothing is pending once all connections have
  // ended. Before the executor goes.
  void Stop();

  const std::shared_ptr<RegionTable>& regions() const { return regions_; }

 private:
  RailSet(Executor executor, Clock& clock, const RailOptions& options)
      : executor_(std::move(executor)),
        clock_(clock),
        options_(options),
        regions_(std::make_shared<RegionTable>()) {}
  void Drop(const Rail* rail);
  void CloseBeside(std::shared_ptr<Rail> rail);
  asio::thread_pool& Joiners();  // under mutex_, unless it has been stopped
  void PrepareAll();
  // To look opens every device, which takes milliseconds each, and clients come in crowds: one looks at a
  // time, and the others take what was seen before. `doubt_none`: unless that was nothing.
  StatusOr<std::vector<PortInfo>> LookOrRecall(bool doubt_none);

  const Executor executor_;
  Clock& clock_;
  const RailOptions options_;
  const std::shared_ptr<RegionTable> regions_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<Rail>> rails_;
  std::optional<StatusOr<std::vector<PortInfo>>> ports_;  // none: not known
  Duration ports_seen_{};                                 // when they were
  bool looking_ = false;
  std::condition_variable looked_;
  std::unique_ptr<asio::thread_pool> joiners_;  // for what may take seconds; made when first needed
  bool stopped_ = false;
  std::atomic<int> joining_ = 0;
  std::atomic<bool> stopping_ = false;
};

}  // namespace nacre::verbs
