#include "tests/sim/unanswered.h"

#include <fcntl.h>

#include <cerrno>
#include <stdexcept>

namespace nacre::sim {

std::optional<Fid> FoundEntry(const ObservedTree& tree, Fid directory, const std::string& name) {
  auto found = tree.find(directory);
  if (found == tree.end()) return std::nullopt;
  auto entry = found->second.children.find(name);
  if (entry == found->second.children.end()) return std::nullopt;
  return entry->second;
}

// The entry leads to something new.
Unanswered UnansweredMake(Model& model, InodeId directory, std::string name, uint32_t mode,
                          std::string target) {
  const Fid parent = model.inode(directory).fid;
  Unanswered make;
  make.happened = [&model, parent, name](const ObservedTree& tree) {
    const std::optional<Fid> found = FoundEntry(tree, parent, name);
    return found && !model.WasMade(*found);
  };
  make.apply = [&model, parent, directory, name, mode, target](const ObservedTree& tree) {
    const InodeId made = model.NewId();
    model.Add(made, directory, name, mode, *FoundEntry(tree, parent, name));
    model.inode(made).target = target;
  };
  return make;
}

Unanswered UnansweredLink(Model& model, InodeId source, InodeId directory, std::string name) {
  const Fid parent = model.inode(directory).fid, fid = model.inode(source).fid;
  Unanswered link;
  link.happened = [parent, name, fid](const ObservedTree& tree) {
    return FoundEntry(tree, parent, name) == fid;
  };
  link.apply = [&model, source, directory, name](const ObservedTree&) {
    model.Link(source, directory, name);
  };
  return link;
}

Unanswered UnansweredRemove(Model& model, InodeId directory, std::string name) {
  const Fid parent = model.inode(directory).fid;
  Unanswered remove;
  remove.happened = [parent, name](const ObservedTree& tree) { return !FoundEntry(tree, parent, name); };
  remove.apply = [&model, directory, name](const ObservedTree&) { model.Remove(directory, name); };
  return remove;
}

int RenameError(Model& model, InodeId from, const std::string& name, InodeId to, const std::string& new_name,
                uint32_t flags) {
  const auto source = model.Child(from, name), target = model.Child(to, new_name);
  if (!source) return ENOENT;
  if (target && (flags & RENAME_NOREPLACE) != 0) return EEXIST;
  if (!target && (flags & RENAME_EXCHANGE) != 0) return ENOENT;
  const bool exchange = (flags & RENAME_EXCHANGE) != 0;
  const bool directory = model.inode(*source).directory();
  if (directory && model.IsWithin(to, *source)) return EINVAL;
  if (!target) return 0;
  const bool onto_directory = model.inode(*target).directory();
  if (exchange) return onto_directory && model.IsWithin(from, *target) ? EINVAL : 0;
  if (*source == *target) return 0;
  if (directory != onto_directory) return directory ? ENOTDIR : EISDIR;
  return onto_directory && !model.inode(*target).children.empty() ? ENOTEMPTY : 0;
}

// Which inode it moves is known only with the tree that it is made to.
Unanswered UnansweredRename(Model& model, InodeId from, std::string name, InodeId to, std::string new_name,
                            uint32_t flags, int client, uint64_t behind) {
  const Fid to_fid = model.inode(to).fid;
  Unanswered rename;
  rename.happened = [to_fid, new_name](const ObservedTree& tree) {
    return FoundEntry(tree, to_fid, new_name).has_value();
  };
  rename.apply = [=, &model](const ObservedTree& tree) {
    const bool possible =
        model.Exists(from) && model.Exists(to) && RenameError(model, from, name, to, new_name, flags) == 0;
    if (!possible || model.inode(*model.Child(from, name)).fid != FoundEntry(tree, to_fid, new_name))
      throw std::out_of_range("it moves nothing, or something else");
    model.Rename(from, name, to, new_name, (flags & RENAME_EXCHANGE) != 0, client, behind);
  };
  return rename;
}

}  // namespace nacre::sim
