#include "server/metadata/dispatch.h"

#include <cerrno>

#include "rpc/mutation.h"
#include "server/metadata/ops/ops.h"
#include "server/metadata/ops/session_ops.h"

namespace nacre::mds {

Task<Reply> Dispatch(const Op& op) {
  const proto::MetadataRequest& request = op.request;
  if (op.session->record.read_only && IsMutation(request)) {
    co_return ErrnoError(EROFS, absl::StrFormat("session %d is mounted read-only", op.session->id));
  }
  switch (request.op_case()) {
    case proto::MetadataRequest::kDisconnect:
      co_return co_await Disconnect(op);
    case proto::MetadataRequest::kKeepAlive:
      co_return KeepAlive(op, request.keep_alive());
    case proto::MetadataRequest::kReclaim:
      co_return co_await Reclaim(op, request.reclaim());
    case proto::MetadataRequest::kLookup:
      co_return co_await Lookup(op, request.lookup());
    case proto::MetadataRequest::kGetattr:
      co_return co_await Getattr(op, request.getattr());
    case proto::MetadataRequest::kMknod:
      co_return co_await Mknod(op, request.mknod());
    case proto::MetadataRequest::kCreate:
      co_return co_await Create(op, request.create());
    case proto::MetadataRequest::kUnlink:
      co_return co_await Unlink(op, request.unlink());
    case proto::MetadataRequest::kReadlink:
      co_return co_await Readlink(op, request.readlink());
    case proto::MetadataRequest::kReaddir:
      co_return co_await Readdir(op, request.readdir());
    case proto::MetadataRequest::kOpen:
      co_return co_await Open(op, request.open());
    case proto::MetadataRequest::kClose:
      co_return co_await Close(op, request.close());
    case proto::MetadataRequest::kUpdateSize:
      co_return co_await UpdateSize(op, request.update_size());
    case proto::MetadataRequest::kSetattr:
      co_return co_await Setattr(op, request.setattr());
    case proto::MetadataRequest::kRename:
      co_return co_await Rename(op, request.rename());
    case proto::MetadataRequest::kLink:
      co_return co_await Link(op, request.link());
    case proto::MetadataRequest::kWriteInline:
      co_return co_await WriteInline(op, request.write_inline());
    case proto::MetadataRequest::kMoveOut:
      co_return co_await MoveOut(op, request.move_out());
    case proto::MetadataRequest::kDropObjects:
      co_return co_await DropObjects(op, request.drop_objects());
    case proto::MetadataRequest::kAppend:
      co_return co_await Append(op, request.append());
    case proto::MetadataRequest::kGetXattr:
      co_return co_await GetXattr(op, request.get_xattr());
    case proto::MetadataRequest::kSetXattr:
      co_return co_await SetXattr(op, request.set_xattr());
    case proto::MetadataRequest::kListXattr:
      co_return co_await ListXattr(op, request.list_xattr());
    case proto::MetadataRequest::kRemoveXattr:
      co_return co_await RemoveXattr(op, request.remove_xattr());
    case proto::MetadataRequest::kSetLayout:
      co_return co_await SetLayout(op, request.set_layout());
    case proto::MetadataRequest::kGetLayout:
      co_return co_await GetLayout(op, request.get_layout());
    case proto::MetadataRequest::kSetLock:
      co_return co_await SetLock(op, request.set_lock());
    case proto::MetadataRequest::kGetLock:
      co_return co_await GetLock(op, request.get_lock());
    case proto::MetadataRequest::kAcquireLease:
      co_return AcquireLease(op, request.acquire_lease());
    case proto::MetadataRequest::kReleaseLease:
      co_return ReleaseLease(op, request.release_lease());
    case proto::MetadataRequest::kReportProblem:
      co_return ReportProblem(op, request.report_problem());
    case proto::MetadataRequest::kStatfs:
      co_return co_await Statfs(op);
    case proto::MetadataRequest::kSync: {
      CO_RETURN_IF_ERROR(co_await op.mds->tables->Sync());
      co_return proto::MetadataReply{};
    }
    default:
      co_return ErrnoError(EPROTO, absl::StrFormat("request %d has no operation that this server knows (%d)",
                                                   request.id(), request.op_case()));
  }
}

}  // namespace nacre::mds
