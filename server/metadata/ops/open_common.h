// Opening a regular file or directory: what open and create share.
#pragma once

#include "server/metadata/mds.h"

namespace nacre::mds {

// Whether these flags of open(2) open for writing.
bool OpensForWriting(uint32_t flags);

// Notes a handle. `flags`: of open(2).
void NoteOpen(const Op& op, const Fid& fid, uint32_t flags);
// Notes that the session keeps an inode that it has removed: it has it open.
void NoteKept(const Op& op, const Fid& fid);

// Checks permission, truncates where O_TRUNC asks for it (recording the reply in the same commit), notes the
// handle; the reply has attributes, layout and inline data. `may_hold_back`: proto::Open.
Task<Reply> OpenFile(const Op& op, Fid fid, uint32_t flags, bool may_hold_back = false);

// Whether the client is to hold a truncation of the file to nothing back (proto/metadata.proto, Open): it has
// bytes that would go, nothing else changes with them, and the client is about to have WRITE of what covers
// it.
bool LeavesTruncationToClient(const Op& op, const Inode& inode);

}  // namespace nacre::mds
