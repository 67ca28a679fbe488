#include "rpc/mutation.h"

#include "rpc/convert.h"

#include <fcntl.h>

namespace nacre {

bool IsMutation(const proto::MetadataRequest& request) {
  switch (request.op_case()) {
    case proto::MetadataRequest::kSetattr:
    case proto::MetadataRequest::kMknod:
    case proto::MetadataRequest::kCreate:
    case proto::MetadataRequest::kUnlink:
    case proto::MetadataRequest::kRename:
    case proto::MetadataRequest::kLink:
    case proto::MetadataRequest::kUpdateSize:
    case proto::MetadataRequest::kWriteInline:
    case proto::MetadataRequest::kMoveOut:
    case proto::MetadataRequest::kAppend:
    case proto::MetadataRequest::kSetXattr:
    case proto::MetadataRequest::kRemoveXattr:
    case proto::MetadataRequest::kSetLayout:
      return true;
    case proto::MetadataRequest::kOpen:
      return (request.open().flags() & O_TRUNC) != 0;
    default:
      return false;
  }
}

bool IsMutation(const proto::ObjectRequest& request) {
  switch (request.op_case()) {
    case proto::ObjectRequest::kWrite:
    case proto::ObjectRequest::kTruncate:
    case proto::ObjectRequest::kPunch:
    case proto::ObjectRequest::kPreallocate:
    case proto::ObjectRequest::kDestroy:
    case proto::ObjectRequest::kGrant:
      return true;
    default:
      return false;
  }
}

Fid ChangedInode(const proto::MetadataRequest& request) {
  switch (request.op_case()) {
    case proto::MetadataRequest::kSetattr:
      return FromProto(request.setattr().fid());
    case proto::MetadataRequest::kLink:
      return FromProto(request.link().fid());
    case proto::MetadataRequest::kOpen:
      return FromProto(request.open().fid());
    case proto::MetadataRequest::kUpdateSize:
      return FromProto(request.update_size().fid());
    case proto::MetadataRequest::kWriteInline:
      return FromProto(request.write_inline().fid());
    case proto::MetadataRequest::kMoveOut:
      return FromProto(request.move_out().fid());
    case proto::MetadataRequest::kAppend:
      return FromProto(request.append().fid());
    case proto::MetadataRequest::kSetXattr:
      return FromProto(request.set_xattr().fid());
    case proto::MetadataRequest::kRemoveXattr:
      return FromProto(request.remove_xattr().fid());
    case proto::MetadataRequest::kSetLayout:
      return FromProto(request.set_layout().fid());
    default:
      return {};
  }
}

}  // namespace nacre
