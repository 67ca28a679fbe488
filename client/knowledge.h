// Answers without the MDS what a mount knows of the tree under the leases that it holds: attributes, names
// and listings. Learns it from the MDS's answers (scope.h says when those may be trusted).
//
// The knowledge lies in the inodes. Thread-safe; takes the inodes' mutexes, one at a time, except where it
// says that one is held.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "client/entrance.h"
#include "client/filesystem.h"
#include "client/held_leases.h"
#include "client/inode_table.h"
#include "client/scope.h"
#include "client/session.h"
#include "proto/metadata.pb.h"

namespace nacre::client {

class Knowledge {
 public:
  // All of them outlive it.
  Knowledge(const Environment& environment, const Options& options, InodeTable& inodes, HeldLeases& leases,
            const Entrance& entrance, const Session& session);

  // --- trust; with the mutex of the inode held ---

  // Whether its attributes are true.
  bool Trusts(const Inode& inode) const;
  // Whether the names that are known of the directory are.
  bool TrustsNames(const Inode& directory) const;

  // --- answers ---

  // The attributes as they are now. Nothing: the MDS has to be asked.
  std::optional<Known> Stat(Inode& inode) const;
  // The answer of an operation that has just learned or changed the attributes: as above, or for this moment
  // only.
  Known Answer(Inode& inode) const;
  // Says what a name means; `until`: as in Known. kUnknown: the MDS has to be asked.
  NameKnown Find(Inode& directory, const std::string& name, Duration* until) const;
  // The same for a caller who looks it up, and may be refused.
  NameKnown Find(const Caller& caller, Inode& directory, const std::string& name, Duration* until) const;
  // Sets until when the name may be kept by which `known` was found, if the directory's names are known here.
  void PromiseName(Inode& directory, const std::string& name, Known* known) const;
  // A directory of which everything is known, as it is now; its cookies count the entries. Null: the MDS has
  // to be asked.
  Listing List(Inode& directory) const;
  // A part of such a list. Names that have gone since are left out: with attributes the kernel would take
  // them for present. Those of which nothing is known any more (the lease was away meanwhile) come without
  // attributes.
  std::vector<DirEntry> Entries(Inode& directory, const std::vector<Listed>& listing, uint64_t cookie,
                                size_t limit, bool plus) const;
  // Whether the attributes are what is known of the inode.
  bool IsCurrent(const proto::Attr& attr) const;

  // --- learning ---

  // Notes what the MDS has said of a file. Null: it said nothing of the layout, or of the bytes. Older
  // answers do not overwrite newer ones, nor what is worked on here.
  static void Learn(Inode& inode, const proto::Attr& attr, const proto::Layout* layout = nullptr,
                    const std::string* data = nullptr);
  // The same of an entry, of which everything was asked for.
  InodePtr Learn(const proto::Entry& entry) const;
  // The same of one that was looked up under these leases; returns what is answered to who looked.
  Known LearnFound(const Learning& learning, const proto::Entry& entry) const;
  // The same of one of many in a listing that began at `began` (InodeTable::Now); `kept`: false if there is
  // no room to keep it.
  Known LearnListed(const Learning& learning, const proto::Attr& attr, uint64_t began, bool* kept) const;

 private:
  Known AnswerLocked(const Inode& inode) const;
  Duration PromiseUnder(Scope& scope) const;
  Duration PromiseOfNames(const Inode& directory) const;

  const Environment& environment_;
  const Options& options_;
  InodeTable& inodes_;
  HeldLeases& leases_;
  const Entrance& entrance_;
  const Session& session_;
};

}  // namespace nacre::client
