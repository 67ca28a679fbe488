// Opening a regular file or directory: what open and create share.
#pragma once

#include "server/metadata/mds.h"

namespace nacre::mds {

// Whether these flags of open(2) open for writing.
bool OpensForWriting(uint32_t flags);

// How a handle is to be opened: what Open and Create say.
struct OpenHow {
  uint32_t flags = 0;   // of open(2)
  bool untold = false;  // its close will not be told either
};

// Notes the handle, unless the client keeps count of it by itself.
void NoteOpen(const Op& op, const Fid& fid, OpenHow how);

// Checks permission, truncates where O_TRUNC asks for it (recording the reply in the same commit), notes the
// handle; the reply has attributes, layout and inline data.
Task<Reply> OpenFile(const Op& op, Fid fid, OpenHow how);

}  // namespace nacre::mds
