// The MDS's end of a metadata stream over gRPC. Included by rpc/grpc_server.cc only.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "proto/metadata.grpc.pb.h"
#include "rpc/frame_batcher.h"
#include "rpc/grpc_served.h"
#include "rpc/metadata_channel.h"
#include "rpc/request_queue.h"
#include "rpc/writes_in_turn.h"

namespace nacre {

// One stream, and for the MDS its peer. Reactions come from gRPC's thread, Send, Close and the handlers'
// answers from any.
class GrpcSession : public MetadataPeer,
                    public std::enable_shared_from_this<GrpcSession>,
                    private WritesInTurn<GrpcSession> {
  friend class WritesInTurn<GrpcSession>;

 public:
  GrpcSession(GrpcServing& serving, proto::Metadata::AsyncService& service, MetadataHandler& handler)
      : executor_(serving.executor), serving_(serving), service_(service), handler_(handler) {}

  // As GrpcCalls wants them.
  void Wait(void* tag);
  void Start();
  void Drop() { over_.Drop(); }

  std::string name() const override { return name_; }
  void Send(proto::Push push) override;
  void Close() override;

 private:
  static Task<void> Handle(std::shared_ptr<GrpcSession> self, proto::MetadataRequest request);

  void OnTold(bool) {}
  void OnRead(bool ok);
  void OnWritten(bool ok);
  void OnOver(bool) { End(true); }
  void OnFinished(bool);

  void ReadOn();
  void Proceed(std::unique_lock<std::mutex> lock);
  void NextBurst();
  void Answer(proto::MetadataReply reply);
  void Write(std::unique_lock<std::mutex> lock);
  void End(bool lost);

  const Executor executor_;
  GrpcServing& serving_;
  proto::Metadata::AsyncService& service_;
  MetadataHandler& handler_;
  std::string name_;
  grpc::ServerContext context_;
  grpc::ServerAsyncReaderWriter<proto::ServerFrame, proto::ClientFrame> stream_{&context_};
  std::optional<GrpcUsers::User> user_;  // until it has been finished
  proto::ClientFrame incoming_;
  std::mutex mutex_;
  RequestQueue<proto::MetadataRequest> requests_;
  FrameBatcher<proto::ServerFrame> outgoing_;
  proto::ServerFrame writing_frame_;
  bool writing_ = false, ended_ = false, finished_ = false;
  bool reading_ = true;        // from Start on, until what was read has been looked at
  bool burst_posted_ = false;  // NextBurst is to come
  Reaction<GrpcSession, &GrpcSession::OnTold> tell_{this};
  Reaction<GrpcSession, &GrpcSession::OnRead> read_{this};
  Reaction<GrpcSession, &GrpcSession::OnWritten> write_{this};
  Reaction<GrpcSession, &GrpcSession::OnOver> over_{this};
  Reaction<GrpcSession, &GrpcSession::OnFinished> finish_{this};
};

}  // namespace nacre
