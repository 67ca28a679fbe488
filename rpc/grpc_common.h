// Settings and conversions that all users of gRPC share. Included by rpc/grpc_*.cc and
// server/coordination/etcd_*.cc only.
#pragma once

#include <memory>
#include <string>

#include "common/status.h"

namespace grpc {
class Channel;
class ChannelArguments;
class ChannelCredentials;
class ServerBuilder;
class Status;
}  // namespace grpc

namespace nacre {

// One metadata message and, with room to spare, one frame (FrameBatcher).
inline constexpr size_t kMaxMetadataMessage = 16 << 20;
inline constexpr int kMaxGrpcMessage = 2 * static_cast<int>(kMaxMetadataMessage);

// gRPC's own log goes into ours at debug level: what matters of it comes back as a status. Call before any
// use of gRPC.
void QuietGrpc();

// "host:port" or "unix:/path" as gRPC wants it. INVALID_ARGUMENT for anything else.
StatusOr<std::string> GrpcTarget(const std::string& address);

// How soon a server that does not answer is found out and one that comes back is tried again.
enum class GrpcPatience {
  kAlone,    // there is no other one: a connection is given up after 20 s without an answer to a ping
  kSeveral,  // others may serve instead: after less than 5 s
  kCopies,   // it is to have a copy of everything: after 3 s, and it is tried again twice in a second
};

// Keepalive, limits, no proxies, quick reconnects.
void SetChannelArguments(grpc::ChannelArguments* arguments, GrpcPatience patience);
void SetServerArguments(grpc::ServerBuilder* builder);

// With these arguments; connects at the first call.
std::shared_ptr<grpc::Channel> NewGrpcChannel(const std::string& target,
                                              const std::shared_ptr<grpc::ChannelCredentials>& credentials,
                                              GrpcPatience patience = GrpcPatience::kAlone);

// Why a call to the server at `address` failed, with what to check.
Status FromGrpc(const grpc::Status& status, const std::string& address);

}  // namespace nacre
