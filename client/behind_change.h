// Changes that are answered before the MDS has done them, as they wait for its answer (names_behind.cc).
#pragma once

#include <string>

#include "client/inode.h"

namespace nacre::client {

struct BehindChange {
  InodePtr inode;       // what was made, removed or changed
  uint64_t number = 0;  // attr.change after it
  InodePtr directory;   // null: no entry changes
  std::string name;
  InodePtr new_directory;  // rename
  std::string new_name;
  InodePtr replaced;
  ScopePtr born;  // of a directory that was made under WRITE of the one around it
};

struct BehindRename {
  InodePtr from, to;  // directories
  std::string name, new_name;
  InodePtr source, target;  // target null: the new name is free
};

}  // namespace nacre::client
