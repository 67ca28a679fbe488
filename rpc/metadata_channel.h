// The seam between a client and the MDS: messages of proto/metadata.proto both ways. Real forms: gRPC over
// TCP or a unix socket (grpc_channel.h, grpc_server.h), and in process (inproc_channel.h); the simulation has
// its own.
#pragma once

#include <absl/functional/any_invocable.h>

#include <memory>
#include <string>

#include "common/clock.h"
#include "common/status.h"
#include "common/task.h"
#include "proto/metadata.pb.h"

namespace nacre {

// Client's end of one stream. Thread-safe. Does not reconnect by itself: after `on_lost` make a new one
// (client/session does, and repeats what was unanswered).
class MetadataChannel {
 public:
  virtual ~MetadataChannel() = default;

  // Sends a request; the channel sets its id. UNAVAILABLE: the stream is lost, the request may have been
  // carried out. The reply's own status is inside it. No deadline: a lock may take for ever, and a dead
  // server ends the stream.
  virtual Task<StatusOr<proto::MetadataReply>> Call(proto::MetadataRequest request) = 0;

  // Ends the stream; every pending call fails with UNAVAILABLE, and no event starts any more (one may still
  // be running). The destructor does the same.
  virtual void Close() = 0;
};

struct MetadataChannelEvents {
  // One at a time, on the executor of the task that connected.
  absl::AnyInvocable<void(proto::Push)> on_push;
  absl::AnyInvocable<void(Status)> on_lost;  // once, after the last on_push; not after Close
};

class MetadataConnector {
 public:
  virtual ~MetadataConnector() = default;
  // UNAVAILABLE if the server does not answer within the timeout; the message says what to check.
  virtual Task<StatusOr<std::shared_ptr<MetadataChannel>>> Connect(MetadataChannelEvents events,
                                                                   Duration timeout) = 0;
  virtual std::string address() const = 0;
  // How many servers it asks in turn, one at each Connect (several_servers.h).
  virtual size_t servers() const { return 1; }
};

// Server's end of one stream, held by the MDS while it lasts. Thread-safe.
class MetadataPeer {
 public:
  virtual ~MetadataPeer() = default;
  virtual void Send(proto::Push push) = 0;
  virtual void Close() = 0;              // e.g. after an eviction
  virtual std::string name() const = 0;  // where it comes from, for logs
};

// The interface that an MDS offers to whatever carries the stream.
class MetadataHandler {
 public:
  virtual ~MetadataHandler() = default;
  // May be called many times at once; the reply's id is set by the caller.
  virtual Task<proto::MetadataReply> Handle(std::shared_ptr<MetadataPeer> peer,
                                            proto::MetadataRequest request) = 0;
  virtual void Disconnected(std::shared_ptr<MetadataPeer> peer) = 0;
};

}  // namespace nacre
