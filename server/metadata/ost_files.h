// Finds the files that have objects on an OST, or that somebody wants otherwise. Nobody keeps a list of them:
// all inodes are looked through, a part of them at a time. Thread-safe.
#pragma once

#include <absl/functional/function_ref.h>

#include <vector>

#include "server/metadata/mds.h"

namespace nacre::mds {

// Whether the file has objects, or may get them by a write that is under way, on the OST.
bool HasObjectsOn(const Inode& inode, OstIndex ost);

struct FilesFound {
  std::vector<Fid> files;
  Fid last;          // the inode that was looked at last
  bool end = false;  // there is none behind it
};

// Looks at some thousand inodes behind `after` (in the order of their FIDs; none: from the beginning), and
// finds those that are wanted. A change of that time is seen or not. An inode that cannot be read is logged
// and passed over.
StatusOr<FilesFound> FindFiles(Mds& mds, const Fid& after, absl::FunctionRef<bool(const Inode&)> wanted);

// Finds those that have objects on the OST.
StatusOr<FilesFound> FindFilesOn(Mds& mds, OstIndex ost, const Fid& after);

// All of them, with a pause now and then, so that others have their turn.
Task<StatusOr<uint64_t>> CountFilesOn(MdsPtr mds, OstIndex ost);

}  // namespace nacre::mds
