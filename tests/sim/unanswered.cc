#include "tests/sim/unanswered.h"

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

Unanswered UnansweredRename(Model& model, InodeId from, std::string name, InodeId to, std::string new_name,
                            bool exchange, int client, Duration began) {
  const Fid to_fid = model.inode(to).fid, source = model.inode(*model.Child(from, name)).fid;
  Unanswered rename;
  rename.happened = [to_fid, new_name, source](const ObservedTree& tree) {
    return FoundEntry(tree, to_fid, new_name) == source;
  };
  rename.apply = [&model, from, name, to, new_name, exchange, client, began](const ObservedTree&) {
    model.Rename(from, name, to, new_name, exchange, client, began);
  };
  return rename;
}

}  // namespace nacre::sim
