// The objects that a program needs to use a Nacre filesystem: threads, the data plane, a way to the MDS, and
// a mounted FileSystem. Mount and Unmount from the main thread; run operations with Run.
#pragma once

#include <memory>
#include <string>

#include "client/filesystem.h"
#include "common/random.h"
#include "common/runtime.h"
#include "rpc/grpc_channel.h"
#include "transport/tcp/tcp_transport.h"

namespace nacre::example {

class Connection {
 public:
  // The MDS's address: "host:port" or "unix:/path".
  static StatusOr<std::unique_ptr<Connection>> Open(const std::string& mds, const std::string& name) {
    std::unique_ptr<Connection> connection(new Connection);
    ASSIGN_OR_RETURN(std::shared_ptr<MetadataConnector> connector, NewGrpcConnector(mds));
    client::Environment environment{connection->runtime_.executor(), RealClock(), SystemRandom(),
                                    *connection->transport_, connector};
    client::Options options;
    options.name = name;  // what nacre status shows
    ASSIGN_OR_RETURN(connection->filesystem_,
                     connection->Run(client::FileSystem::Mount(environment, options)));
    return connection;
  }

  // Writes everything back and says goodbye. Without it the session ends by its timeout, as after a crash.
  Status Close() { return Run(filesystem_->Unmount()); }

  // Runs a task on the connection's threads and waits for its result.
  template <typename T>
  T Run(Task<T> task) {
    return runtime_.Run(std::move(task));
  }

  client::FileSystem& filesystem() { return *filesystem_; }

  ~Connection() { runtime_.Stop(); }  // first the threads, then what they used

 private:
  Connection() : transport_(MakeTcpTransport(runtime_.executor(), RealClock())) {}

  Runtime runtime_{2};
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<client::FileSystem> filesystem_;
};

// The inode behind a path from the root, e.g. "a/b/c"; "" is the root.
inline Task<StatusOr<Fid>> Resolve(client::FileSystem& filesystem, const client::Caller& caller,
                                   std::string path) {
  Fid fid = kRootFid;
  size_t begin = 0;
  while (begin < path.size()) {
    size_t end = std::min(path.find('/', begin), path.size());
    std::string name = path.substr(begin, end - begin);
    begin = end + 1;
    if (name.empty()) continue;
    Duration absent_until{};
    CO_ASSIGN_OR_RETURN(client::Known found, co_await filesystem.Lookup(caller, fid, name, &absent_until));
    fid = {found.attr.fid().sequence(), found.attr.fid().object(), found.attr.fid().version()};
  }
  co_return fid;
}

}  // namespace nacre::example
