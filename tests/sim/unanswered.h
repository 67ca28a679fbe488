// Changes of names that were asked for and not answered when their client died: whether each has happened is
// told from the tree that is found afterwards.
//
// An entry that is found may be older than the change. A change that was answered early before it may be lost
// with the client, and then the entry that was removed or replaced by that one is there again. So a name
// counts only together with the inode that it leads to; and a change that cannot have been made to the tree
// as it is then assumed has not happened (Model::Settle).
#pragma once

#include <string>

#include "tests/sim/model.h"

namespace nacre::sim {

// Returns the inode that has this name in the directory, as found.
std::optional<Fid> FoundEntry(const ObservedTree& tree, Fid directory, const std::string& name);

Unanswered UnansweredMake(Model& model, InodeId directory, std::string name, uint32_t mode,
                          std::string target);
Unanswered UnansweredLink(Model& model, InodeId source, InodeId directory, std::string name);
Unanswered UnansweredRemove(Model& model, InodeId directory, std::string name);
// Returns rename(2)'s error in the tree as the model has it now; 0: it is possible. `flags` are rename(2)'s.
int RenameError(Model& model, InodeId from, const std::string& name, InodeId to, const std::string& new_name,
                uint32_t flags);
// `behind`: as Model::Rename.
Unanswered UnansweredRename(Model& model, InodeId from, std::string name, InodeId to, std::string new_name,
                            uint32_t flags, int client, uint64_t behind);

}  // namespace nacre::sim
