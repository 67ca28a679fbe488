// The operations of proto/object.proto, one file each. Each fills its part of the reply; the status it
// returns becomes the reply's. The request's session has been admitted. The caller keeps everything in the
// context alive.
#pragma once

#include <string>

#include "proto/object.pb.h"
#include "server/object/server_core.h"

namespace nacre::ost {

inline constexpr int kMaxRanges = 4096;  // of one request

struct OpContext {
  Target* target;
  IncomingCall* call;
  const proto::ObjectRequest* request;
  proto::ObjectReply* reply;
  Originator* by;  // the request's session, asked again before each commit
  ServerCore* core;
};

Task<Status> ReadOp(OpContext context);
Task<Status> WriteOp(OpContext context);
Task<Status> TruncateOp(OpContext context);
Task<Status> PunchOp(OpContext context);
Task<Status> PreallocateOp(OpContext context);
Task<Status> StatOp(OpContext context);
Task<Status> SeekOp(OpContext context);
Task<Status> DestroyOp(OpContext context);
Task<Status> SyncOp(OpContext context);
Task<Status> StatfsOp(OpContext context);
Task<Status> GrantOp(OpContext context);
Task<Status> FenceOp(OpContext context);
Task<Status> ListOp(OpContext context);
Task<Status> ListGrownOp(OpContext context);
Task<Status> SettleGrownOp(OpContext context);
Task<Status> SetChainOp(OpContext context);
Task<Status> ApplyOp(OpContext context);
Task<Status> LearnOp(OpContext context);
Task<Status> DigestOp(OpContext context);
Task<Status> VersionsOp(OpContext context);

// Has the members of the OST's chain behind this one carry out the request as well, if there are any.
Task<Status> HandOnRequest(OpContext context);
bool IsHead(const OpContext& context);  // or the only member

// The range lies within the call's memory, and the call is of this kind.
Status CheckMemory(const OpContext& context, CallMemory kind, const proto::ObjectRange& range);

}  // namespace nacre::ost
