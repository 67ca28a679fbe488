// Changes of names that were asked for and not answered when their client died: whether each has happened is
// told from the tree that is found afterwards.
//
// What is found at a name may be older than the change. One that was answered early before it may be lost
// with the client, and then what that one had removed or replaced is there again. So a name counts only with
// what it leads to; and a change that cannot have been made to the tree as it is then assumed has not
// happened (Model::Settle).
#pragma once

#include <string>

#include "tests/sim/model.h"

namespace nacre::sim {

// What the directory, as found, has under this name.
std::optional<Fid> FoundEntry(const ObservedTree& tree, Fid directory, const std::string& name);

Unanswered UnansweredMake(Model& model, InodeId directory, std::string name, uint32_t mode,
                          std::string target);
Unanswered UnansweredLink(Model& model, InodeId source, InodeId directory, std::string name);
Unanswered UnansweredRemove(Model& model, InodeId directory, std::string name);
// What rename(2) answers in the tree as the model has it now; 0: it is possible. `flags` are rename(2)'s.
int RenameError(Model& model, InodeId from, const std::string& name, InodeId to, const std::string& new_name,
                uint32_t flags);
// `behind`: as Model::Rename.
Unanswered UnansweredRename(Model& model, InodeId from, std::string name, InodeId to, std::string new_name,
                            uint32_t flags, int client, uint64_t behind);

}  // namespace nacre::sim
