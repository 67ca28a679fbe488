// A change of this client's own that the MDS carries out, where leases of directories are held: what it
// touches is not trusted meanwhile, and its answer is learned. Belongs to one task.
#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "client/early_changes.h"
#include "client/handles.h"
#include "client/held_leases.h"
#include "client/inode_table.h"
#include "client/knowledge.h"
#include "client/own_data.h"
#include "proto/metadata.pb.h"

namespace nacre::client {

// From before the request is sent until its answer is here: what it touches is not learned meanwhile. The
// answer itself says what it is afterwards, if no other change of this client has met this one there.
class OwnChange {
 public:
  // Where it looks; all of them must live longer.
  struct Here {
    InodeTable& inodes;
    HeldLeases& leases;
    EarlyChanges& early;
    const Knowledge& knowledge;
    Handles& handles;
    OwnData& own_data;
  };

  OwnChange(const Here& here, const proto::MetadataRequest& request);
  OwnChange(const OwnChange&) = delete;
  OwnChange& operator=(const OwnChange&) = delete;
  ~OwnChange();

  // Files of which the kernel may have pages under a lease that does not cover them afterwards.
  std::vector<InodePtr> Paged();

  // Files whose data may be here that lose the lease under which it is, or get an end from the MDS.
  std::vector<InodePtr> WithData();

  // Files with handles that the MDS has to be told of first: afterwards their lease may protect them no more.
  std::vector<InodePtr> Leaving();

  // Files whose attributes the kernel may keep under a lease that does not cover them afterwards; and names
  // of which it is not known what they mean.
  struct Kept {
    std::vector<Fid> files;
    std::vector<std::pair<InodePtr, std::string>> names;
  };
  Kept KeptByKernel(Duration now);

  // The kernel keeps a renamed name for as long as it was promised under the lease of the directory where it
  // was. Until when that is, if it is covered by no lease where it will be.
  Duration PromisedNames();

  // The last moment for which anything was promised that the change may concern.
  Duration PromisedAll() const;

  // Under which leases the answer may be learned: those of before, and those that come with it.
  Learning* learning() { return &learning_; }
  // Takes the answer in, once its leases have been.
  void Answered(const proto::MetadataReply& reply);

 private:
  // Not if the lease has ended.
  void LearnAttributes(uint64_t event, const ScopePtr& scope, const proto::Attr& attr);

  // Adds the files with data under leases of their own that an entry of this directory may mean, as far as is
  // known here. `any`: changes are under way that may bring one there.
  void AddOwnDataIn(const Fid& directory, bool any, std::set<Fid>* files);

  // How often this change has begun at the inode.
  uint32_t Begun(const Inode& inode) const;

  // With the mutex of the inode held: whether no other change of it was under way since this one began.
  bool IsAlone(const Inode& inode) const;

  std::set<Fid> MetNoOther() const;

  void EndName(size_t entry);

  // Marks the inodes that the names mean, which change with them, so that no change of these is answered
  // early meanwhile; where it is not known what a name means, none in that directory is, and none of a file
  // with a lease of its own. The order is held.
  void BeginNamed();
  void EndNamed();

  // `begun`: what LastOf has returned.
  static void EndMove(Inode& directory, const ScopePtr& begun);

  // Finds what the name means, unless another change of this client may be about to say otherwise.
  NameKnown Find(Inode& directory, const std::string& name);

  InodePtr Begin(const Fid& fid);

  const Here here_;
  Learning learning_;
  const bool renames_;
  std::vector<proto::Attr> after_;  // what the answer says
  bool says_names_ = false;         // and what the names mean
  Fid named_;                       // the one that was made; zero: one was removed
  std::vector<InodePtr> inodes_;
  std::vector<std::pair<InodePtr, std::string>> names_;
  // Of names_, if files may leave these or lose their bytes; null: there was no lease.
  std::vector<ScopePtr> scopes_;
  std::vector<ScopePtr> moves_;  // the same, if files may leave
  Fid linked_, appended_;
  bool takes_out_ = false;
  bool truncates_ = false;
  bool exchanges_ = false;
  std::vector<Fid> of_unknown_;  // EarlyChanges::BeginUnknown
};

}  // namespace nacre::client
