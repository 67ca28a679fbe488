// The operations of proto/metadata.proto, one per file of this directory. Each checks its input and the
// caller's permission, takes its locks, and commits one transaction. Thread-safe; the Op lives until the task
// has ended. Errors are what the application sees.
#pragma once

#include "server/metadata/mds.h"

namespace nacre::mds {

Task<Reply> Lookup(const Op& op, const proto::Lookup& request);
Task<Reply> Getattr(const Op& op, const proto::Getattr& request);
Task<Reply> Setattr(const Op& op, const proto::Setattr& request);
Task<Reply> Mknod(const Op& op, const proto::Mknod& request);
Task<Reply> Create(const Op& op, const proto::Create& request);
Task<Reply> Unlink(const Op& op, const proto::Unlink& request);
Task<Reply> Rename(const Op& op, const proto::Rename& request);
Task<Reply> Link(const Op& op, const proto::Link& request);
Task<Reply> Readlink(const Op& op, const proto::Readlink& request);
Task<Reply> Readdir(const Op& op, const proto::Readdir& request);
Task<Reply> Open(const Op& op, const proto::Open& request);
Task<Reply> Close(const Op& op, const proto::Close& request);
Task<Reply> UpdateSize(const Op& op, const proto::UpdateSize& request);
Task<Reply> WriteInline(const Op& op, const proto::WriteInline& request);
Task<Reply> MoveOut(const Op& op, const proto::MoveOut& request);
Task<Reply> DropObjects(const Op& op, const proto::DropObjects& request);
Task<Reply> Append(const Op& op, const proto::Append& request);
Task<Reply> GetXattr(const Op& op, const proto::GetXattr& request);
Task<Reply> SetXattr(const Op& op, const proto::SetXattr& request);
Task<Reply> ListXattr(const Op& op, const proto::ListXattr& request);
Task<Reply> RemoveXattr(const Op& op, const proto::RemoveXattr& request);
Task<Reply> SetLayout(const Op& op, const proto::SetLayout& request);
Task<Reply> GetLayout(const Op& op, const proto::GetLayout& request);
Task<Reply> SetLock(const Op& op, const proto::SetLock& request);
Task<Reply> GetLock(const Op& op, const proto::GetLock& request);
Task<Reply> Statfs(const Op& op);

}  // namespace nacre::mds
