#include "rpc/grpc_backup.h"

#include <grpcpp/grpcpp.h>

#include <cerrno>

#include "proto/backup.grpc.pb.h"
#include "rpc/convert.h"
#include "rpc/grpc_common.h"
#include "rpc/several_servers.h"

namespace nacre {

namespace {

Status FetchFrom(const std::string& address, GrpcPatience patience, const TakePiece& take) {
  ASSIGN_OR_RETURN(std::string target, GrpcTarget(address));
  QuietGrpc();
  grpc::ChannelArguments arguments;
  SetChannelArguments(&arguments, patience);
  auto channel = grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments);
  auto stub = proto::Backup::NewStub(channel);
  grpc::ClientContext context;
  auto reader = stub->BackupMdt(&context, proto::BackupRequest());
  proto::BackupPiece piece;
  Status status = OkStatus();
  bool whole = false;
  while (status.ok() && !whole && reader->Read(&piece)) {
    status = FromProto(piece.status());
    if (status.ok()) status = take(piece.data(), piece.expected_bytes());
    whole = status.ok() && piece.last();
  }
  if (!whole) context.TryCancel();
  grpc::Status end = reader->Finish();
  if (!status.ok() || whole) return status;
  return FromGrpc(end, address);
}

}  // namespace

Status FetchBackup(const std::string& addresses, const TakePiece& take) {
  ASSIGN_OR_RETURN(std::vector<std::string> servers, SplitAddresses(addresses));
  for (const std::string& server : servers) RETURN_IF_ERROR(GrpcTarget(server).status());
  const GrpcPatience patience = servers.size() > 1 ? GrpcPatience::kSeveral : GrpcPatience::kAlone;
  bool begun = false;
  const TakePiece note = [&](const std::string& data, uint64_t expected) {
    begun = true;
    return take(data, expected);
  };
  Status status;
  for (const std::string& server : servers) {
    status = FetchFrom(server, patience, note);
    if (begun || !IsRetryable(status)) break;
  }
  return status;
}

}  // namespace nacre
