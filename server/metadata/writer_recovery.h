// The sizes of files whose writers have gone without saying how far they came.
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
// Nobody waits for this, but an eviction, and an OST that comes back, for a few seconds. Until an OST that
// was away at the eviction is back, a file may be shorter than it will be then.
//
// Thread-safe. Errors: UNAVAILABLE, EIO when the OST does not answer; the store's.
#pragma once

#include <mutex>
#include <set>

#include "common/ids.h"
#include "common/status.h"
#include "common/task.h"

namespace nacre::mds {

struct Mds;

class WriterRecovery {
 public:
  // One pass over the notes of one OST: those of this session, or all (0). Ends after a few seconds, also if
  // it is not through, or the OST does not answer.
  Task<Status> Recover(std::shared_ptr<Mds> mds, OstIndex ost, SessionId session);

  // In the background, as long as the MDS runs: every OST that is up, side by side.
  Task<void> Run(std::shared_ptr<Mds> mds);

 private:
  bool Begin(OstIndex ost);
  void End(OstIndex ost);

  std::mutex mutex_;
  std::set<OstIndex> busy_;  // with a pass of Run
};

}  // namespace nacre::mds
