#include "rpc/grpc_copies.h"

#include <absl/strings/str_format.h>
#include <grpcpp/grpcpp.h>

#include <cerrno>

#include "proto/copies.grpc.pb.h"
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
    auto exchange = std::make_shared<PendingExchange>();
    exchange->request = std::move(request);
    exchange->context.set_deadline(
        gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_nanos(timeout.count(), GPR_TIMESPAN)));
    std::function<void(grpc::Status)> done = [exchange](grpc::Status status) {
      exchange->done.Set(std::move(status));
    };
    stub_->async()->Exchange(&exchange->context, &exchange->request, &exchange->reply, std::move(done));
    grpc::Status status = co_await exchange->done.Wait();
    if (!status.ok()) co_return FromGrpc(status, address_);
    co_return std::move(exchange->reply);
  }

 private:
  // Memory that gRPC writes to while the call lasts, whether or not somebody still waits.
  struct PendingExchange {
    grpc::ClientContext context;
    proto::CopyRequest request;
    proto::CopyReply reply;
    OneShot<grpc::Status> done;
  };

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
