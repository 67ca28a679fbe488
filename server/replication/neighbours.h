// The other members of the filesystem: where they are, and a channel to each. Thread-safe.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/task.h"
#include "rpc/copy_channel.h"
#include "server/replication/judge.h"

namespace nacre::replication {

class Neighbours {
 public:
  Neighbours(CopyConnector& connector, Judge& judge, std::string self)
      : connector_(connector), judge_(judge), self_(std::move(self)) {}

  // Asks the coordinator where they are now. Of one whose address is no address the error is logged.
  Task<Status> Refresh();

  std::vector<std::string> names() const;
  std::string address(const std::string& name) const;  // also of this member; empty: not known

  // To the member, if it is known where it is: UNAVAILABLE otherwise, and as in CopyChannel. The reply's own
  // status is in it.
  Task<StatusOr<proto::CopyReply>> Exchange(proto::CopyRequest request, Duration timeout);

 private:
  CopyConnector& connector_;
  Judge& judge_;
  const std::string self_;

  mutable std::mutex mutex_;
  std::map<std::string, std::string> addresses_;
  std::map<std::string, std::shared_ptr<CopyChannel>> channels_;  // without this member
};

}  // namespace nacre::replication
