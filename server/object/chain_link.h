// The way from a member of an OST's chain to another one. Thread-safe.
//
// A request is sent again when a connection breaks, and what was under way on that may be carried out later
// all the same: when the other has done it once more, and what followed. So requests are numbered, and each
// says below which number nothing is waited for any more: the other refuses copies of those (Chain::Hear).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/ids.h"
#include "common/status.h"
#include "common/task.h"
#include "proto/object.pb.h"
#include "transport/transport.h"

namespace nacre::ost {

class ChainLink {
 public:
  ChainLink(std::shared_ptr<Peer> peer, Clock& clock, OstIndex ost, proto::ChainMember member)
      : peer_(std::move(peer)), clock_(clock), ost_(ost), member_(std::move(member)) {}
  ~ChainLink() { peer_->Close(); }
  ChainLink(const ChainLink&) = delete;

  const std::string& uuid() const { return member_.uuid(); }
  bool Leads(const proto::ChainMember& member) const {
    return member.uuid() == member_.uuid() && member.address() == member_.address() &&
           member.instance() == member_.instance();
  }

  // Sends the request (op and header but for ost and instance filled in) with what the member may get from
  // (for a read: put into), and again as long as it cannot be reached or does not know the chain yet: for
  // kPatience at most, or until `goes_on` says no. An attempt lasts for `timeout` at most. Not OK: the
  // member's own refusal; or ETIMEDOUT, it has not answered; EHOSTUNREACH, one behind it has not, and the
  // message begins with its uuid and a space.
  Task<StatusOr<proto::ObjectReply>> Call(proto::ObjectRequest request, std::vector<MemorySpan> memory,
                                          Duration timeout, std::function<bool()> goes_on);

  static constexpr Duration kPatience = std::chrono::milliseconds(1500);
  static constexpr Duration kChangeTimeout = std::chrono::seconds(4);
  static constexpr Duration kSyncTimeout = std::chrono::seconds(20);

 private:
  class Turn;
  static constexpr uint64_t kNoTurn = UINT64_MAX;

  Task<StatusOr<proto::ObjectReply>> Repeat(const Turn& turn, proto::ObjectRequest request,
                                            std::vector<MemorySpan> memory, Duration timeout,
                                            std::function<bool()> goes_on);
  Task<StatusOr<proto::ObjectReply>> Attempt(const proto::ObjectRequest& request,
                                             std::vector<MemorySpan> memory, Duration timeout);

  const std::shared_ptr<Peer> peer_;
  Clock& clock_;
  const OstIndex ost_;
  const proto::ChainMember member_;

  std::mutex mutex_;
  uint64_t last_ = 0;             // the newest number
  std::set<uint64_t> under_way_;  // of calls that have not ended
  // The lowest of the calls of the newest epoch that have failed. It holds the low water back, or the other
  // would not count what those are about as in doubt any more (in_doubt.h); late copies of them are refused
  // all the same.
  uint64_t first_failed_ = kNoTurn;
  uint32_t failed_in_ = 0;  // the epoch
};

}  // namespace nacre::ost
