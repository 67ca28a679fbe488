// Opening a regular file or directory: what open and create share.
#pragma once

#include "server/metadata/mds.h"

namespace nacre::mds {

// Whether these flags of open(2) open for writing.
bool OpensForWriting(uint32_t flags);

// Notes the handle, unless the session holds the filesystem lease (proto/metadata.proto, Lease).
void NoteOpen(const Op& op, const Fid& fid, uint32_t flags);

// Checks permission, truncates where O_TRUNC asks for it, notes the handle; the reply has attributes, layout
// and inline data.
Task<Reply> OpenFile(const Op& op, Fid fid, uint32_t flags);

}  // namespace nacre::mds
