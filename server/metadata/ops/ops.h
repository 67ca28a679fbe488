// The operations of proto/metadata.proto, one per file of this directory. Each checks its input and the caller's permission, takes its
// locks, and commits one transaction. Thread-safe; the Op lives until the task has ended. Errors are what the application sees.
#pragma once

#include "server/metadata/mds.h"

namespace nacre::mds {

Task<Reply> Lookup(const Op& op, const proto::Lookup& request);
Task<Reply> Getattr(const Op& op, const proto::Getattr& request);
Task<Reply> Mknod(const Op& op, const proto::Mknod& request);
Task<Reply> Create(const Op& op, const proto::Create& request);
Task<Reply> Unlink(const Op& op, const proto::Unlink& request);
Task<Reply> Readlink(const Op& op, const proto::Readlink& request);
Task<Reply> Readdir(const Op& op, const proto::Readdir& request);
Task<Reply> Open(const Op& op, const proto::Open& request);
Task<Reply> Close(const Op& op, const proto::Close& request);
Task<Reply> UpdateSize(const Op& op, const proto::UpdateSize& request);
Task<Reply> Statfs(const Op& op);

}  // namespace nacre::mds
