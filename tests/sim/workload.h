// Random POSIX operations by several clients, each compared with the model as it is answered.
//
// A client runs a few workers, one operation each at a time. A worker takes the model's claims for what its
// operation touches; if it cannot, it picks another one. So operations run at once wherever the answer of
// each is still certain: on different names of a directory, on different bytes of a file, on handles while
// names come and go.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "client/filesystem.h"
#include "tests/sim/cluster.h"
#include "tests/sim/kernel.h"
#include "tests/sim/model.h"
#include "tests/sim/world.h"

namespace nacre::sim {

struct WorkloadOptions {
  int workers = 3;          // of each client
  bool exact_times = true;  // everybody's clock is the world's
  bool sequential = false;  // one operation at a time in all
  bool saves = false;       // half of the renames: a file that is open here takes another one's place
  // So many clients have directories of their own, to which they mostly keep; 0: all work everywhere.
  int homes = 0;
  // A process that writes a file does so many times in a row; with `own_files` nobody but its maker opens it
  // for that.
  bool own_files = false;
  bool in_rows = false;
  uint64_t max_bytes = 384 << 10;  // of a file
};

struct OpenFile {
  InodeId inode = 0;
  int flags = 0;
  client::HandlePtr handle;
};

// Answers after which applications rely on something: it lasts, its bytes leave, the other file is replaced.
enum class Promise { kSynced, kClosed, kReplaced };

class Workload;

// The state of one life of a client; destroyed with its process, before its FileSystem.
struct ClientState {
  int index = 0;
  client::FileSystem* filesystem = nullptr;
  Process* process = nullptr;
  std::unique_ptr<Kernel> kernel;
  std::vector<OpenFile> files;
  uint64_t early_seen = 0;  // client::Seen::early_answered at its last change
  int under_way = 0;        // operations
  bool only_reads = false;  // those that begin from now on change nothing
  // It is being evicted: errors are allowed, and leave it open whether the operation happened; so does any
  // answer that comes in another session than that in which the operation began, since what was answered
  // early before is lost by then. Its count of early answers that are done is not believed: it includes
  // refused ones.
  bool failing = false;
  // The session in which it was cut off from servers: what is read in that one is compared all the same.
  std::optional<uint64_t> cut_epoch;

  bool Compared() const { return !failing || cut_epoch == filesystem->Look().epoch; }
};

// One operation: its number, its claims. One that is not Finished when its coroutine dies stays pending in
// the model.
class Operation {
 public:
  Operation(Workload& workload, ClientState& client);
  ~Operation();
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  uint64_t id() const { return id_; }
  const client::Seen& began() const { return began_; }
  bool Take(std::vector<Claim> claims);
  // A change of the tree, in case no answer comes, or another than the one that is expected: what stands in
  // its way may have been answered early and be lost.
  void Pending(Unanswered change);
  // A change of the tree has been acknowledged just now.
  void Change(std::function<void()> change);
  // Compares with the errno that must come. True: it came, and the operation is over (`error` 0: go on and
  // apply it). False without a failure: it is left open what has happened.
  bool Expect(const std::string& what, const Status& status, int error);
  void Wrong(const std::string& what);

 private:
  Workload& workload_;
  ClientState& client_;
  const uint64_t id_;
  const client::Seen began_;
  bool taken_ = false;
  bool over_ = false;
  bool changes_ = false;
};

inline constexpr std::string_view kVisitorsName = "visited";

class Workload {
 public:
  Workload(World& world, Cluster& cluster, Model& model, WorkloadOptions options)
      : world_(world), cluster_(cluster), model_(model), options_(options) {}

  // The client has mounted: gives it work until Pause.
  void Start(int client);
  // The client's process is about to end.
  void Dies(int client);
  void Failing(int client);
  // Failing, because it cannot reach the MDS or an OSS: its applications change nothing any more, and read
  // on.
  void CutOff(int client);
  // Somebody makes a name in the root beside the model, and removes it: an answer may show it from now on.
  void NoteVisit() { visited_ = true; }
  bool visited() const { return visited_; }
  // A disk fails now and then: an operation may answer EIO, and has made nothing durable then.
  void set_flush_may_fail(bool may) { flush_may_fail_ = may; }
  bool flush_may_fail() const { return flush_may_fail_; }

  void Pause() { paused_ = true; }
  void Resume() { paused_ = false; }
  void OnlyReads(int client, bool only);
  // Clients write and read what they have open, past their caches where they can, and do nothing else.
  void OnlyBytes(bool only) { only_bytes_ = only; }
  // Workers hardly pause: much is under way at once.
  void Hurry(bool hurries) { hurries_ = hurries; }
  bool Idle() const { return running_ == 0; }
  // Tells the model how far the MDS has come with what clients have answered early.
  void NoteDone();
  // Null: it is gone, or another one since.
  ClientState* client(int index) { return clients_[static_cast<size_t>(index)].lock().get(); }
  uint64_t done() const { return done_; }  // how many operations have been answered as they must be
  void NotePromise(Promise promise) { ++promised_[static_cast<size_t>(promise)]; }
  uint64_t promised(Promise promise) const { return promised_[static_cast<size_t>(promise)]; }
  // Whether any other client has something under way. (An operation that does not end keeps its claims: in a
  // tree with little in it the others may find nothing to do.)
  bool OthersWork(int than) const;
  // The directories that are this client's (WorkloadOptions::homes), and what lies in them.
  std::set<InodeId> Home(int client) const;

  World& world() { return world_; }
  Model& model() { return model_; }
  const WorkloadOptions& options() const { return options_; }
  void NoteMaker(InodeId file, int client) { makers_[file] = client; }
  // Whether the client may open the file for writing (WorkloadOptions::own_files).
  bool MayWrite(InodeId file, int client) const;
  Random& random() { return world_.random(); }

 private:
  friend class Operation;
  struct Running;  // counts a worker for as long as its coroutine lives

  static Task<void> Worker(Workload* workload, ClientState* client);
  static Task<void> Onlooker(Workload* workload, ClientState* client, bool asks);
  Duration Rest();
  void CloseAll(ClientState& client);

  World& world_;
  Cluster& cluster_;
  Model& model_;
  const WorkloadOptions options_;
  std::vector<std::weak_ptr<ClientState>> clients_;
  std::map<InodeId, int> makers_;
  bool paused_ = false;
  bool hurries_ = false;
  bool only_bytes_ = false;
  bool visited_ = false;
  bool flush_may_fail_ = false;
  ClientState* busy_ = nullptr;  // of the sequential form: whose turn it is
  int running_ = 0;
  uint64_t next_operation_ = 1;
  uint64_t done_ = 0;
  std::array<uint64_t, 3> promised_{};  // by Promise: how many so far
};

const client::Caller& Root();

// Closes every handle of a client whose files may be gone.
Task<Status> GiveUpHandles(Workload* workload, ClientState* client);

// Closes every handle of a client that lives.
Task<void> ReleaseAll(Workload* workload, ClientState* client);

// Fsync of every open file: what has been answered is durable from then on, or the answer is EIO.
Task<Status> SyncAll(Workload* workload, ClientState* client);

// Opens every file, or the root where there is none, and fsyncs it: errors of write-behind that nobody has
// been told of, a file's or the mount's, are told to the next handle, whatever it does.
Task<Status> TakeErrors(Workload* workload, ClientState* client);

// A change of a file's bytes: visible from its start on, and its time lies between start and end.
void BeginChange(Workload& workload, ClientState& client, InodeId inode, Operation& operation,
                 FileChange change);
void EndChange(Workload& workload, ClientState& client, InodeId inode, Operation& operation, WallTime start);

// One random operation. False: nothing suitable could be claimed.
Task<bool> NamespaceOperation(Workload* workload, ClientState* client);
Task<bool> DataOperation(Workload* workload, ClientState* client);
// The same of those that change nothing.
Task<bool> ReadNames(Workload* workload, ClientState* client);
Task<bool> ReadData(Workload* workload, ClientState* client);
// Writes bytes of an open file, of one with O_DIRECT if there is any, or reads all that are there.
Task<bool> ByteOperation(Workload* workload, ClientState* client);
// Reads, of every open file, what a mapping shows without asking anybody.
void LoadResident(Workload* workload, ClientState* client);

// Reads everything there is, through this mount.
Task<Status> Walk(client::FileSystem* filesystem, ObservedTree* tree);

}  // namespace nacre::sim
