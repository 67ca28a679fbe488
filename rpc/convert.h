// Wire types <-> ours.
#pragma once

#include "common/clock.h"
#include "common/ids.h"
#include "common/status.h"
#include "proto/types.pb.h"

namespace nacre {

inline Fid FromProto(const proto::Fid& fid) { return {fid.sequence(), fid.object(), fid.version()}; }
inline proto::Fid ToProto(const Fid& fid) {
  proto::Fid out;
  out.set_sequence(fid.sequence);
  out.set_object(fid.object);
  out.set_version(fid.version);
  return out;
}

inline ObjectId FromProto(const proto::ObjectId& id) { return {id.sequence(), id.stripe()}; }
inline proto::ObjectId ToProto(const ObjectId& id) {
  proto::ObjectId out;
  out.set_sequence(id.sequence);
  out.set_stripe(id.stripe);
  return out;
}

inline WallTime FromProto(const proto::Time& time) { return {time.seconds(), time.nanos()}; }
inline proto::Time ToProto(const WallTime& time) {
  proto::Time out;
  out.set_seconds(time.seconds);
  out.set_nanos(time.nanos);
  return out;
}

inline Status FromProto(const proto::StatusProto& status) {
  return status.error() == 0 ? OkStatus() : ErrnoError(static_cast<int>(status.error()), status.message());
}
inline proto::StatusProto ToProto(const Status& status) {
  proto::StatusProto out;
  if (status.ok()) return out;
  out.set_error(static_cast<uint32_t>(ToErrno(status)));
  out.set_message(status.message().data(), status.message().size());
  return out;
}

}  // namespace nacre
