#include "rpc/grpc_copies.h"

#include <absl/strings/str_format.h>

#include <cerrno>

#include "proto/copies.grpc.pb.h"
#include "rpc/grpc_call.h"
#include "rpc/grpc_common.h"

namespace nacre {
namespace {

class GrpcCopyChannel : public CopyChannel {
 public:
  GrpcCopyChannel(std::string address, const std::string& target)
      : address_(std::move(address)),
        stub_(proto::Copies::NewStub(
            NewGrpcChannel(target, grpc::InsecureChannelCredentials(), GrpcPatience::kCopies))) {}

  Task<StatusOr<proto::CopyReply>> Exchange(proto::CopyRequest request, Duration timeout) override {
    if (const size_t bytes = request.ByteSizeLong(); bytes > kMaxGrpcMessage) {
      co_return ErrnoError(
          EMSGSIZE, absl::StrFormat("a request of %d bytes to the MDS at %s is beyond the limit of %d", bytes,
                                    address_, kMaxGrpcMessage));
    }
    const auto call = std::make_shared<GrpcCall<proto::CopyReply>>(timeout);
    GrpcAnswer<proto::CopyReply> answer =
        co_await call->Ask(*stub_, &proto::Copies::Stub::PrepareAsyncExchange, std::move(request));
    if (!answer.status.ok()) co_return FromGrpc(answer.status, address_);
    co_return std::move(answer.reply);
  }

 private:
  const std::string address_;
  const std::unique_ptr<proto::Copies::Stub> stub_;
};

class GrpcCopyConnector : public CopyConnector {
 public:
  StatusOr<std::shared_ptr<CopyChannel>> Open(const std::string& address) override {
    ASSIGN_OR_RETURN(std::string target, GrpcTarget(address));
    return std::make_shared<GrpcCopyChannel>(address, target);
  }
};

}  // namespace

std::shared_ptr<CopyConnector> NewGrpcCopyConnector() { return std::make_shared<GrpcCopyConnector>(); }

}  // namespace nacre
