// Versions of objects, as the members of a chain tell them each other.
#pragma once

#include "proto/object.pb.h"
#include "rpc/convert.h"
#include "server/object/format.h"

namespace nacre {

inline ost::ObjectVersion FromProto(const proto::ObjectVersion& version) {
  return {version.epoch(), version.changes()};
}
inline proto::ObjectVersion ToProto(const ost::ObjectVersion& version) {
  proto::ObjectVersion out;
  out.set_epoch(version.epoch);
  out.set_changes(version.changes);
  return out;
}

}  // namespace nacre
