// Versions and edits of objects, as the members of a chain tell them each other.
#pragma once

#include <vector>

#include "proto/object.pb.h"
#include "rpc/convert.h"
#include "server/object/format.h"
#include "server/object/journal.h"

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

namespace nacre::ost {

// With the checksums of written blocks.
inline void AddEdits(const std::vector<ExtentEdit>& edits, proto::ApplyChange* apply) {
  for (const ExtentEdit& edit : edits) {
    proto::BlockEdit* out = apply->add_edits();
    out->set_first(edit.first);
    out->set_count(edit.count);
    out->set_kind(edit.physical == nullptr ? proto::BlockEdit::HOLE
                  : edit.crc == nullptr    ? proto::BlockEdit::UNWRITTEN
                                           : proto::BlockEdit::WRITTEN);
    if (edit.physical != nullptr && edit.crc != nullptr)
      apply->mutable_crc()->Add(edit.crc, edit.crc + edit.count);
  }
}

}  // namespace nacre::ost
