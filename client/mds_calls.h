// Asks the MDS, which comes to it after everything that was answered early; and takes over the leases that
// come with its answers. Before a change it gives up what that will make untrue here and in the kernel
// (own_change.h).
//
// Thread-safe. The arguments of the constructor must outlive it. A call waits for the MDS as long as the
// session's policy says, and ends with the session.
#pragma once

#include <functional>
#include <string>

#include "client/background.h"
#include "client/caller.h"
#include "client/early_changes.h"
#include "client/entrance.h"
#include "client/held_leases.h"
#include "client/kept_pages.h"
#include "client/kernel_cache.h"
#include "client/knowledge.h"
#include "client/metadata_queue.h"
#include "client/own_change.h"
#include "client/session.h"

namespace nacre::client {

class MdsCalls {
 public:
  using Reply = StatusOr<proto::MetadataReply>;

  struct Hooks {
    // Sends and drops the data that is here of a file.
    std::function<Task<void>(InodePtr file)> give_data_up;
    // Gives a lease back that has ended here, of this id or, if that is 0, of the one that it will have.
    // `present`: from before it was noted as given up.
    std::function<Task<void>(InodePtr directory, uint64_t lease, ScopePtr scope, Learning present)> give_back;
  };

  MdsCalls(const Environment& environment, const Options& options, const Entrance& entrance, Session& session,
           MetadataQueue& queue, KeptPages& pages, KernelCache& kernel, Background& background,
           const OwnChange::Here& here, Hooks hooks);

  // --- asking ---

  Task<Reply> Ask(const Caller& caller, proto::MetadataRequest request);
  // For what follows from an open handle, with the rights of root.
  Task<Reply> AskAsSystem(proto::MetadataRequest request);
  // For a task that does not pass the gate.
  Task<Reply> AskIn(uint64_t epoch, proto::MetadataRequest request);

  Task<StatusOr<Known>> LookUp(const Caller& caller, InodePtr directory, std::string name);
  Task<StatusOr<Known>> Refresh(const Caller& caller, Fid fid, bool want_layout);
  // A file whose content this client may work on: layout or inline bytes are known, and true as of now.
  // `end`: how much of it is to be read, at most.
  Task<StatusOr<FileContent>> LoadContent(InodePtr inode, uint64_t end = UINT64_MAX);
  Task<Status> LoadFile(InodePtr inode);

  // Before a change in the directory is tried early: under WRITE those of this client that the MDS is doing
  // there are waited for, and what they have left untrue is asked for. Else several threads that begin in a
  // directory at once would go on asking the MDS for ever, each in the others' way.
  Task<Status> SettleDirectory(InodePtr directory);

  // --- leases ---

  // Takes over the scopes that came with an answer. The MDS has to be told of files that were opened under
  // scopes that end with it.
  void TakeScopes(Learning* learning, const proto::MetadataReply& reply);
  // Ends all: what was learned under them need not be true any more, or nobody asks for it.
  void EndScopes();
  // Ends those that are SHARED: the MDS does not know of such.
  void EndShared();
  // Those of directories that were let go for want of memory.
  void ReturnDroppedScopes();
  void ReturnScope(InodePtr directory, ScopePtr scope);

 private:
  Task<Reply> AskWhenConnected(proto::MetadataRequest request);
  Task<Reply> AskBehindQueue(uint64_t epoch, proto::MetadataRequest request);
  Task<Reply> AskForChange(uint64_t epoch, proto::MetadataRequest request);
  Task<void> MakeKernelForget(OwnChange* change);

  const Environment& environment_;
  const Options& options_;
  const Entrance& entrance_;
  Session& session_;
  MetadataQueue& queue_;
  KeptPages& pages_;
  KernelCache& kernel_;
  Background& background_;
  const OwnChange::Here here_;
  const Hooks hooks_;
};

}  // namespace nacre::client
