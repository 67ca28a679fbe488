// The order in which the mutations of a batch are carried out (proto/metadata.proto, Batch).
//
// One begins when the one before it has its place in the store (KvBatch::TellPlace), and not only when that
// is stored: by then all its checks are passed and it holds its locks, so what follows it and needs these
// waits for them, and is stored behind it. So the outcome is that of one mutation after the other, also if
// the machine loses power in the middle, while those of several directories share a commit and the
// processors.
//
// Rarer kinds, which commit more than once or look at what they have not locked, are carried out alone. And
// what names an inode that one under way names waits for its end: it would wait for the lock, and a new inode
// is not found before, so that what covers it (change_guard.h) would be missing and it would have to begin
// again.
#pragma once

#include <functional>
#include <optional>

#include "common/task.h"
#include "proto/metadata.pb.h"

namespace nacre::mds {

// Carries out one mutation; `placed`, if it is there, is handed on to its commit.
using CarryOutOne = std::function<Task<proto::MetadataReply>(proto::MetadataRequest one,
                                                             std::optional<OneShot<Unit>> placed)>;

// The replies in the order of the requests. One that fails keeps none back.
Task<proto::BatchReply> CarryOut(proto::Batch batch, CarryOutOne one);

}  // namespace nacre::mds
