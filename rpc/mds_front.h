// Stands between the callers and one of several MDSes (docs/decisions/0066-copies-of-the-mdt.md): refuses
// everything until the process's member has become the primary, and from then on withholds every answer and
// every push that another primary may contradict by then.
//
// Refused is with UNAVAILABLE, in words that name this member and the primary, if it is known; but a request
// of a session (any but Connect) gets no answer at all: its stream ends, as if this process had ended, for
// the client repeats it then, and an answer would be the operation's. Neither form is refused for good.
//
// Thread-safe. Outlives whatever still runs on the executor of the server that serves it.
#pragma once

#include <absl/functional/any_invocable.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "rpc/backup_channel.h"
#include "rpc/cluster_channel.h"
#include "rpc/metadata_channel.h"

namespace nacre {

// Whether the MDS of this process is the one whose word counts. Thread-safe.
class Authority {
 public:
  virtual ~Authority() = default;
  // Whether nobody else can be the primary at this moment. Cheap: asked twice for each request.
  virtual bool MayServe() const = 0;
  // Waits until MayServe. UNAVAILABLE: it never will again.
  virtual Task<Status> AwaitAuthority() = 0;
  // Calls `done` with true when all that this MDS has changed before the call is with everybody who may be
  // the primary after it: at once, or later, in the order of the calls. With false if that will never be.
  virtual void WhenKept(absl::AnyInvocable<void(bool kept)> done) = 0;
};

class WithheldPeers;

class MdsFront : public MetadataHandler, public ClusterHandler, public BackupHandler {
 public:
  // `name` is that of the member. `primary` gives the address of the primary, empty if it is not known; it is
  // called from any thread, also after Serve.
  MdsFront(std::string name, std::function<std::string()> primary);
  ~MdsFront() override;

  // From now on requests go to these, which outlive whatever still runs on the server's executor. Once.
  //
  // A request waits for the authority and is handed on; its answer waits until what the MDS has changed by
  // then, which it may depend on, is kept by those who may be the primary next, and for the authority again
  // if that has lapsed meanwhile. So an answer that is given was true at a moment within the request at which
  // this was the primary; and one that was made under promises that have lapsed, and that cannot be renewed,
  // is never given. A push waits for the others to keep what was changed before it, and pushes to one peer
  // leave in their order, the end of its stream behind them; for the authority they do not wait: what they
  // say of leases and locks is void with the primary that says it. A backup needs the authority when it
  // begins, and does not wait for it: it is a picture of one moment, of what the others have.
  void Serve(MetadataHandler& metadata, ClusterHandler& cluster, BackupHandler& backup,
             std::shared_ptr<Authority> authority);

  Task<proto::MetadataReply> Handle(std::shared_ptr<MetadataPeer> peer,
                                    proto::MetadataRequest request) override;
  void Disconnected(std::shared_ptr<MetadataPeer> peer) override;

  Task<proto::RegisterOssReply> RegisterOss(proto::RegisterOssRequest request) override;
  Task<proto::HeartbeatReply> Heartbeat(proto::HeartbeatRequest request) override;
  Task<proto::ReportChainReply> ReportChain(proto::ReportChainRequest request) override;
  Task<proto::ClusterStatus> GetStatus() override;
  Task<proto::AdminReply> Administer(proto::AdminRequest request) override;

  StatusOr<std::unique_ptr<BackupSource>> BeginBackup() override;

  // A bug planted for the simulation (docs/testing.md): an answer to what changes nothing is given before
  // what it may show is kept.
  void PlantEarlyReads() { plant_early_reads_ = true; }

 private:
  struct Served {
    MetadataHandler& metadata;
    ClusterHandler& cluster;
    BackupHandler& backup;
    const std::shared_ptr<Authority> authority;
  };

  Status Refusal() const;
  // OK: the one that serves has the authority at this moment.
  Task<Status> AwaitTurn();
  // OK: so has it, and what was changed before the call is kept, which the answer may depend on.
  Task<Status> AwaitLeave();
  // The MDS that serves gets this in place of the peer: always the same one while somebody has it.
  std::shared_ptr<MetadataPeer> Withheld(const std::shared_ptr<MetadataPeer>& peer);
  template <typename Reply, typename... Request>
  Task<Reply> Pass(Task<Reply> (ClusterHandler::*method)(Request...), Request... request);

  const std::string name_;
  const std::function<std::string()> primary_;
  std::unique_ptr<const Served> owned_;
  std::atomic<const Served*> served_{nullptr};  // owned_, once it is there
  const std::shared_ptr<WithheldPeers> peers_;
  bool plant_early_reads_ = false;
};

}  // namespace nacre
