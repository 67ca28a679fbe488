// A watch of etcd's as hints (coordinator.h). Nothing of it runs between two calls of Next but gRPC's
// receiving, so it needs no executor of its own and ends with its destruction.
//
// A stream that ends, or on which the member is silent although it was asked whether it is there, is opened
// at the next member, from now on; that is told as a gap, since what came between may be missing.
#pragma once

#include <memory>
#include <string>

#include "server/coordination/coordinator.h"
#include "server/coordination/etcd_client.h"

namespace nacre::coordination {

struct EtcdWatchState;
class EtcdWatchStream;

class EtcdWatch : public Watch {
 public:
  // `client` outlives this.
  EtcdWatch(EtcdClient& client, std::string prefix, int64_t revision);
  ~EtcdWatch() override;

  Task<StatusOr<Hint>> Next(Duration timeout) override;

 private:
  Task<Status> Open(Duration patience);
  Task<void> Rest(Duration end);
  void Look();                 // takes what the stream has to tell
  Status LeaveStream();        // it is over: an error if it is no use to open another one
  void Fail(std::string why);  // the stream, or the attempt at one; the next member has its turn
  void Drop();

  EtcdClient& client_;
  const std::string prefix_;
  int64_t after_;         // what is to be told is behind this; 0: from now on
  bool gap_ = false;      // to be told when a stream stands again
  bool changed_ = false;  // to be told
  int refused_ = 0;       // streams in a row, perhaps for the token's sake
  size_t failures_ = 0;   // attempts in a row
  size_t member_ = 0;     // these two: of the stream
  std::string token_;
  std::string why_;                       // there is no stream
  std::unique_ptr<EtcdWatchState> seen_;  // of the stream, when it was looked at last
  std::shared_ptr<EtcdWatchStream> stream_;
};

}  // namespace nacre::coordination
