#include "rpc/grpc_backup.h"

#include <grpcpp/grpcpp.h>

#include <cerrno>

#include "proto/backup.grpc.pb.h"
#include "rpc/convert.h"
#include "rpc/grpc_common.h"

namespace nacre {

Status FetchBackup(const std::string& address, const TakePiece& take) {
  ASSIGN_OR_RETURN(std::string target, GrpcTarget(address));
  QuietGrpc();
  grpc::ChannelArguments arguments;
  SetChannelArguments(&arguments);
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

}  // namespace nacre
