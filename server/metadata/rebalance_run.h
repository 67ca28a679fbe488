// Does the work of a run of the Rebalancer: looks through all files, and moves such as make OSTs more even,
// one after the other, at a limited rate (MetadataOptions::drain_rate). Belongs to one coroutine.
//
//   round   up to four looks through all files: the large ones go first, which cost the least for what they
//           bring. It is over at once when OSTs are at their mean.
//   wait    until what files have left is gone, so that the OSTs' own figures say how even they are. If they
//           are not yet, there is another round.
//
// A file is moved once, as long as the OSTs that take part are the same: one that has objects of a sequence
// that is younger than that is left alone. So nothing of it is in memory, and no byte goes back and forth.
#pragma once

#include <set>

#include "server/metadata/balance.h"
#include "server/metadata/mds.h"
#include "server/metadata/moved_space.h"

namespace nacre::mds {

class RebalanceRun {
 public:
  explicit RebalanceRun(MdsPtr mds) : mds_(std::move(mds)) {}

  // Works until the run has ended, or goes on with another threshold, or the server stops.
  Task<void> Work(RebalanceRecord run);

 private:
  struct Round {
    uint64_t moved = 0;
    uint64_t stuck = 0;  // in the last look that there was
  };

  bool Runs() const { return !mds_->closed && mds_->rebalancer.Runs(run_); }
  double threshold() const { return run_.threshold / 10'000.0; }
  void Refresh();
  std::optional<OstIndex> Missing() const;
  std::optional<Balance::Plan> PlanFor(const Inode& inode, int look) const;
  bool IsEnough(int look) const;

  Task<Round> WorkRound();
  Task<Status> WorkLook(int look, Round* round);
  Task<Status> MoveFiles(std::vector<Fid> files, int look, Round* round);
  Task<Status> MoveOne(Fid fid, int look, Round* round);
  void NoteMove(const Inode& before, const Balance::Plan& plan, Round* round);
  Task<void> RenewIfOthers();
  Task<void> RestWhenEven();
  Task<void> RestWhenVain(Round round);
  Task<void> AwaitStart();
  Task<void> AwaitGone();
  Task<void> WaitFor(OstIndex missing);
  Task<void> Pause();
  Task<void> End(bool even, std::string why);

  const MdsPtr mds_;
  RebalanceRecord run_;
  bool started_ = false;
  MovedSpace moved_;
  std::set<OstIndex> osts_;         // that took part in the last round
  std::optional<Balance> balance_;  // as it is expected to become
  Duration looked_{0};              // when that was taken from the OSTs' figures
  int vain_ = 0;                    // pauses since a file was moved
};

}  // namespace nacre::mds
