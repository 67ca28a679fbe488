// Stands between the callers and one of several MDSes (docs/decisions/0066-copies-of-the-mdt.md): refuses
// everything until the process's member has become the primary, and from then on withholds every answer that
// another primary may contradict by then.
//
// Refused is with UNAVAILABLE, in words that name this member and the primary, if it is known; but a request
// of a session (any but Connect) gets no answer at all: its stream ends, as if this process had ended, for
// the client repeats it then, and an answer would be the operation's. Neither form is refused for good.
//
// Thread-safe. Outlives whatever still runs on the executor of the server that serves it.
#pragma once

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
};

class MdsFront : public MetadataHandler, public ClusterHandler, public BackupHandler {
 public:
  // `name` is that of the member. `primary` gives the address of the primary, empty if it is not known; it is
  // called from any thread, also after Serve.
  MdsFront(std::string name, std::function<std::string()> primary);
  ~MdsFront() override;

  // From now on requests go to these, which outlive whatever still runs on the server's executor. Once.
  //
  // A request waits for the authority, is handed on, and waits for it again if it has lapsed when the answer
  // is ready. So an answer that is given was true at a moment within the request at which this was the
  // primary; and one that was made under promises that have lapsed, and that cannot be renewed, is never
  // given. Pushes are not held back: what they say is void with the primary that says it. A backup needs the
  // authority when it begins, and does not wait for it: it is a picture of one moment.
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
  template <typename Reply, typename... Request>
  Task<Reply> Pass(Task<Reply> (ClusterHandler::*method)(Request...), Request... request);

  const std::string name_;
  const std::function<std::string()> primary_;
  std::unique_ptr<const Served> owned_;
  std::atomic<const Served*> served_{nullptr};  // owned_, once it is there
};

}  // namespace nacre
