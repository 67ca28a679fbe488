// The sizes of files whose writers have gone without saying how far they came, or have said it to an MDT that
// has lost it since.
//
// A client writes to the objects first and tells the MDS the file's new size after it. When its session ends
// in between, bytes lie behind the end of the file, and would appear in it when somebody lets it grow. So the
// file becomes as long as its objects say.
//
// Which files these can be, the OSTs know: each notes, in the commit of the change, which objects a session
// has made longer (proto/object.proto, ListGrown), until this class says that the MDT knows of it. So there
// is no list of files to keep here, a restart of the MDS forgets nothing, and an OST that is away keeps its
// notes until it is back. Each OST has a queue of its own (its notes), which is worked off every few seconds:
// a note whose size the client has told is settled; one of a session that has ended makes the file longer
// first; others stay. So there are notes only of what is being written now, and an eviction looks at those of
// its session.
//
// When these bytes were written is not known, so mtime stays and ctime says that something has changed. They
// may be a living client's: it says its mtime itself, with the size.
//
// Nobody waits for this, but an eviction, and an OST that comes back, for a few seconds. Until an OST that
// was away at the eviction is back, a file may be shorter than it will be then.
//
// A loss of power takes sizes from the MDT that clients were told it has, and whose notes are still there: a
// note goes only after a sync. Then a pass over all notes of each OST makes the files as long as they were,
// whether the sessions live or not, and a record says that it is done, so that a restart before that does not
// forget it. Until then nobody is let see or change a file, or it would be emptied or grown by its wrong size
// and show old bytes later; but only for some seconds, since an OST may be away for long.
//
// Thread-safe. Errors: UNAVAILABLE, EIO when the OST does not answer; the store's.
#pragma once

#include <atomic>
#include <mutex>
#include <set>

#include "common/ids.h"
#include "common/latch.h"
#include "common/status.h"
#include "common/task.h"

namespace nacre::mds {

struct Mds;

// Says whether somebody waits for a pass. If so, a file whose lease a client has to give up first is left to
// the next pass in the background.
enum class RecoveryPass {
  kWaitedFor,  // by an eviction, or by an OST that comes back
  kBackground,
};

class WriterRecovery {
 public:
  // At the start, once the OSTs and the MDT's losses are known.
  Status Load(Mds& mds);
  // Closed until the sizes that the last loss of power has taken are there again, or some seconds after the
  // start.
  Latch& sizes() { return sizes_; }
  // Whether this OST may know sizes that the last loss of power has taken, and has not been asked yet.
  bool MayKnowMore(OstIndex ost);

  // One pass over the notes of one OST: those of this session, or all (0). Ends after a few seconds, also if
  // it is not through, or the OST does not answer.
  Task<Status> Recover(std::shared_ptr<Mds> mds, OstIndex ost, SessionId session, RecoveryPass how);

  // In the background, as long as the MDS runs: every OST that is up, side by side.
  Task<void> Run(std::shared_ptr<Mds> mds);
  // Likewise, until every OST has been asked since the last loss of power.
  Task<void> RunAfterLoss(std::shared_ptr<Mds> mds);

  // The OST has been removed: nobody waits for its sizes any more.
  void Forget(OstIndex ost);

 private:
  bool Begin(OstIndex ost);
  void End(OstIndex ost);
  void StartPass(const std::shared_ptr<Mds>& mds, OstIndex ost);
  std::set<OstIndex> Unasked();
  Task<Status> NoteAsked(std::shared_ptr<Mds> mds, OstIndex ost);

  std::mutex mutex_;
  std::set<OstIndex> busy_;     // with a pass of Run or RunAfterLoss
  std::set<OstIndex> unasked_;  // since the last loss of power
  Latch sizes_;
};

}  // namespace nacre::mds
