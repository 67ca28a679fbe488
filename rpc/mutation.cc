#include "rpc/mutation.h"

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

}  // namespace nacre
