// One request and its answer, over gRPC. Included by rpc/grpc_*.cc and server/coordination/etcd_*.cc only.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <utility>

#include "common/clock.h"
#include "common/task.h"
#include "rpc/grpc_completions.h"

namespace nacre {

// The reply counts where the status is OK.
template <typename Reply>
struct GrpcAnswer {
  grpc::Status status;
  Reply reply;
};

// Memory that gRPC writes to while the call lasts, whether or not somebody still waits.
template <typename Reply>
class GrpcCall : public std::enable_shared_from_this<GrpcCall<Reply>> {
 public:
  explicit GrpcCall(Duration timeout) { context_.set_deadline(DeadlineIn(timeout)); }

  // For headers, before Ask.
  grpc::ClientContext* context() { return &context_; }

  // method: a stub's PrepareAsync…. Once.
  template <typename Stub, typename Method, typename Request>
  Task<GrpcAnswer<Reply>> Ask(Stub& stub, Method method, Request request) {
    const auto self = this->shared_from_this();
    const auto reader = (stub.*method)(&context_, request, Completions::OfChannels().queue());
    reader->StartCall();
    reader->Finish(&answer_.reply, &answer_.status, ended_.Begin());
    co_await end_.Wait();
    co_return std::move(answer_);
  }

 private:
  // gRPC says OK of an answer that it could not parse, and this alone says that it could not.
  void OnEnded(bool parsed) {
    if (!parsed && answer_.status.ok())
      answer_.status = {grpc::StatusCode::INTERNAL, "the answer is malformed"};
    end_.Set({});
  }

  grpc::ClientContext context_;
  GrpcAnswer<Reply> answer_;
  OneShot<Unit> end_;
  Reaction<GrpcCall, &GrpcCall::OnEnded> ended_{this};
};

}  // namespace nacre
