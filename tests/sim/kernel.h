// The kernel's caches above one client: pages of files, attributes and names, filled, used and forgotten as
// FUSE and fuse/ do it. The workload reads, writes and looks up through it, so a page, a size or a name that
// it was not made to forget in time is seen as a wrong answer.
//
// Belongs to one life of a client; single-threaded, like everything in the simulation.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <vector>

#include "client/filesystem.h"
#include "tests/sim/file_model.h"

namespace nacre::sim {

class Kernel {
 public:
  // Gives the filesystem its Invalidation. Both must outlive what it does.
  Kernel(client::FileSystem* filesystem, Clock* clock);

  // A handle that the filesystem has just made.
  Task<void> Opened(client::HandlePtr handle, Fid fid);
  void Closed(const client::HandlePtr& handle) { cached_.erase(handle.get()); }

  // `mapped`: a load from a mapping, which uses pages whatever the handle.
  Task<StatusOr<Bytes>> Read(client::HandlePtr handle, Fid fid, uint64_t offset, uint64_t length,
                             bool mapped);
  Task<StatusOr<size_t>> Write(client::HandlePtr handle, Fid fid, uint64_t offset,
                               std::vector<std::span<const std::byte>> pieces);
  // The pages that loads from a mapping get without a request to the client, by their index: those that are
  // there and not locked.
  std::map<uint64_t, Bytes> Resident(Fid fid) const;
  Task<StatusOr<proto::Attr>> Stat(client::HandlePtr handle, Fid fid);
  Task<StatusOr<proto::Attr>> Lookup(Fid parent, std::string name);
  // With `plus` the entries that come with attributes are looked up by that (readdirplus).
  Task<StatusOr<std::map<std::string, Fid>>> List(Fid directory, bool plus);
  // The file has been truncated or punched through this mount.
  Task<void> Changed(Fid fid);

  // This mount has changed names: the kernel takes over what the filesystem has answered (`known`).
  void Made(Fid parent, const std::string& name, const client::Known& known);
  void Removed(Fid parent, const std::string& name, Fid fid);
  // `changed`: whose attributes are others by it beside those of what is renamed.
  void Renamed(Fid from, const std::string& name, Fid to, const std::string& new_name, Fid changed,
               bool exchange);
  // It has changed an inode: these are its attributes now.
  void Learn(const client::Known& known);

 private:
  struct Page {
    Bytes data;
    bool good = false;  // as FUSE says: uptodate
    bool locked = false;
    std::vector<OneShot<Unit>> waiters;
  };
  using PagePtr = std::shared_ptr<Page>;
  struct Attributes {
    proto::Attr attr;
    Duration until{0};
  };

  using Place = std::pair<Fid, std::string>;  // a directory, and a name in it
  struct Name {
    Fid fid;  // zero: there is no such name
    Duration until{0};
  };

  // Locks the page, made if need be.
  Task<PagePtr> Lock(Fid fid, uint64_t index);
  static void Unlock(Page& page);
  Task<Status> Fill(client::HandlePtr handle, PagePtr page, uint64_t index);
  Task<void> Forget(Fid fid, uint64_t begin = 0, uint64_t end = UINT64_MAX);
  Task<StatusOr<size_t>> WriteCached(client::HandlePtr handle, Fid fid, uint64_t offset, Bytes bytes);

  client::FileSystem* const filesystem_;
  Clock* const clock_;
  std::map<Fid, std::map<uint64_t, PagePtr>> pages_;
  std::map<Fid, Attributes> attributes_;
  std::map<Place, Name> names_;
  std::set<client::FileHandle*> cached_;
};

}  // namespace nacre::sim
