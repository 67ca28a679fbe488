// The way into a mount: the gate that operations pass, the epoch of the session that they belong to, and
// whether what the client holds is good for long enough by the clock (docs/architecture.md, Leases).
//
// A client may rely on what it holds until Session::leases_end, by its own steady clock: the MDS gives it to
// nobody else before. A client that is cut off notices by that alone. From then on nothing is answered from
// caches and nothing is acknowledged that is held back: operations wait here (hard), or fail after the soft
// time-out, and the kernel is made to forget the pages it has; attributes and names it was never allowed to
// keep for longer (Knowledge::Answer). When the MDS answers again, with the same session, everything goes on;
// when the session is gone, Core::StartAnew follows, and those operations go on in the next epoch that do not
// need a handle of the old.
//
// Thread-safe. Must outlive its passes.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "client/filesystem.h"
#include "client/gate.h"
#include "client/inode.h"
#include "client/session.h"

namespace nacre::client {

class Entrance {
 public:
  // `session`: the mount's, which is there before anybody comes. `run_out`: called when leases have not been
  // confirmed in time, on the environment's executor.
  Entrance(const Environment& environment, const Options& options, const std::shared_ptr<Session>& session,
           std::function<void()> run_out);

  // The epoch of the session (Session::epoch) that everything in memory belongs to: handles, caches, what is
  // held back. Every call names it, and fails if the session has ended since. Changed while the gate is
  // closed and nothing is on its way, so whoever is inside, holds an Inode::meta or has taken a flight sees
  // one epoch only.
  uint64_t epoch() const { return epoch_; }
  void BeginEpoch(uint64_t epoch) { epoch_ = epoch; }
  // EIO if the handle's session was evicted.
  Status Check(const FileHandle& handle) const;

  // Whether what this epoch holds is good still.
  bool LeasesGood() const;
  // Waits until it is, for those outside, and for those inside who have waited. EIO: the handle has gone with
  // its session. ESHUTDOWN; EINTR if nobody waits any more; EPROTO if the MDS does not let this client in.
  Task<Status> AwaitGoodLeases(HandlePtr handle);
  void OnLeasesConfirmed();

  // The quick way in; empty if one has to wait.
  Gate::Pass TryEnter();
  // Fails as AwaitGoodLeases does.
  Task<Status> Enter(Gate::Pass* pass);
  // For what has to come in whatever the leases are, and to close it.
  Gate& gate() { return gate_; }

  // Makes those who wait look again: the session is another one.
  void Wake();
  // From now on nobody waits here: the mount ends.
  void Stop();
  bool stopped() const { return stopped_; }

 private:
  bool MayEnter() const;
  Task<Status> AwaitChange(OneShot<Unit> change, Duration begin);
  void OnRunOut();

  const Environment& environment_;
  const Options& options_;
  const std::shared_ptr<Session>& session_;
  const std::function<void()> run_out_;
  Gate gate_;
  std::atomic<uint64_t> epoch_{1};

  std::mutex mutex_;
  std::vector<OneShot<Unit>> waiting_;  // for leases that are good again, or for a new session
  std::unique_ptr<TimerHandle> run_out_timer_;
  std::atomic<bool> stopped_{false};  // set with the mutex held
};

}  // namespace nacre::client
