// The members of one etcd: a connection to each, which of them is asked next, the user's token, and whether
// what answers is still the etcd of before. Asks in etcd's own messages; the Coordinator made of it is in
// etcd_coordinator.h.
//
// Errors are those of coordinator.h. Thread-safe; outlives its tasks and its callers' watches.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "common/task.h"
#include "server/coordination/etcd.pb.h"
#include "server/coordination/etcd_options.h"

namespace grpc {
class Channel;
class ClientContext;
class Status;
}  // namespace grpc

namespace nacre::coordination {

class EtcdClient {
 public:
  explicit EtcdClient(EtcdAccess access);
  ~EtcdClient();

  // Tried at one member after another until the time is over. `what` begins messages.
  Task<StatusOr<etcdserverpb::RangeResponse>> Range(std::string what, etcdserverpb::RangeRequest request,
                                                    Duration timeout);

  // Sent once, to a member that has just answered; again only if it was refused for the token's sake.
  Task<StatusOr<etcdserverpb::TxnResponse>> Txn(std::string what, etcdserverpb::TxnRequest request,
                                                Duration timeout);

  // For a watch, which has a stream of its own with one member.
  size_t current() const;
  // Notes that a request to this member failed: the next one becomes the current one, if this was.
  void Failed(size_t member);
  const std::string& address(size_t member) const { return access_.endpoints[member].address; }
  const std::shared_ptr<grpc::Channel>& channel(size_t member) const { return channels_[member]; }
  size_t members() const { return channels_.size(); }
  Duration attempt() const { return access_.attempt; }
  bool has_user() const { return !access_.user.empty(); }

  // The user's token, made by this member if there is none; empty without a user or if etcd wants none.
  Task<StatusOr<std::string>> Token(size_t member, Duration timeout);
  // A member has refused it: the next Token is a new one.
  void TokenRefused(const std::string& token);
  // Sets the headers that every request carries.
  static void SetMetadata(grpc::ClientContext* context, const std::string& token);

  // FAILED_PRECONDITION: another cluster than the one that has answered so far, or, where `floor` is given, a
  // state before that revision. Takes note of what it has.
  Status CheckHeader(size_t member, const etcdserverpb::ResponseHeader& header,
                     std::optional<int64_t> floor = std::nullopt);

  // Describes a failed call, with what to check.
  std::string Words(size_t member, const grpc::Status& status) const;

  enum class Verdict {
    kUnknown,  // the member may have done it, or not
    kToken,    // it has not: the token is none any more
    kRefused,  // it has not, and will not
  };
  static Verdict Judge(const grpc::Status& status);
  // The error for kRefused, and for kToken if a new token does not help.
  Status Refusal(std::string_view what, size_t member, const grpc::Status& status) const;

 private:
  class Tries;

  Task<Status> FindConnected(Tries* tries);
  void NoteAnswer(size_t member);
  bool HasJustAnswered(size_t member) const;
  int64_t floor() const;

  const EtcdAccess access_;
  std::vector<std::shared_ptr<grpc::Channel>> channels_;
  mutable std::mutex mutex_;
  size_t current_ = 0;
  std::vector<Duration> answered_;  // by member: when it did last
  std::optional<std::string> token_;
  uint64_t cluster_ = 0;  // 0: nobody has answered yet
  int64_t revision_ = 0;  // the highest that was seen
};

}  // namespace nacre::coordination
