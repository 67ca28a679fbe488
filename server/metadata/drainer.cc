#include "server/metadata/drainer.h"

#include "common/log.h"
#include "server/metadata/migration.h"
#include "server/metadata/ost_files.h"
#include "server/metadata/paths.h"

namespace nacre::mds {
namespace {

constexpr Duration kDrainPause =
    std::chrono::seconds(2);  // before what is left is looked for and tried again
constexpr Duration kDrainYield = std::chrono::milliseconds(1);

bool IsDraining(const Mds& mds, OstIndex ost) {
  return !mds.closed && mds.osts.UseOf(ost) == cluster::OstUse::kDraining;
}

}  // namespace

void Drainer::Wake(const std::shared_ptr<Mds>& mds) {
  {
    std::lock_guard lock(mutex_);
    woken_ = true;
    if (std::exchange(runs_, true)) return;
  }
  Spawn(mds->env.executor, Run(mds));
}

void Drainer::Forget(OstIndex ost) {
  std::lock_guard lock(mutex_);
  states_.erase(ost);
}

bool Drainer::MayEnd() {
  std::lock_guard lock(mutex_);
  if (std::exchange(woken_, false)) return false;
  runs_ = false;
  return true;
}

Task<void> Drainer::Run(std::shared_ptr<Mds> mds) {
  co_await mds->sessions.recovery().Wait();
  while (!mds->closed) {
    bool unfinished = false;
    for (const OstIndex ost : mds->osts.Known()) {
      if (!IsDraining(*mds, ost) || StateOf(ost).empty()) continue;
      co_await Pass(mds, ost);
      unfinished = unfinished || (IsDraining(*mds, ost) && !StateOf(ost).empty());
    }
    if (!unfinished && MayEnd()) co_return;
    co_await mds->env.clock.Sleep(kDrainPause);
  }
}

proto::DrainState Drainer::StateOf(OstIndex ost) const {
  std::lock_guard lock(mutex_);
  auto it = states_.find(ost);
  return it == states_.end() ? proto::DrainState() : it->second;
}

void Drainer::NoteProblem(OstIndex ost, std::string problem) {
  std::lock_guard lock(mutex_);
  states_[ost].set_problem(std::move(problem));
}

// One look through all files. A file that is placed there meanwhile, by who has chosen before the OST was
// drained, is found by the next one.
Task<void> Drainer::Pass(std::shared_ptr<Mds> mds, OstIndex ost) {
  if (!mds->osts.IsUp(ost)) {
    NoteProblem(ost,
                absl::StrFormat("it is down, and its files cannot be read: they are moved when it is back. "
                                "If it is gone for good: nacre ost remove %d --lost",
                                ost));
    co_return;
  }
  const bool may_be_placed = mds->osts.MayYetPlaceOn(ost);
  uint64_t found = 0, stuck = 0;
  bool whole = false;
  for (Fid after; IsDraining(*mds, ost);) {
    auto page = FindFilesOn(*mds, ost, after);
    if (!page.ok()) {
      NoteProblem(ost, std::string(page.status().message()));
      break;
    }
    Status moved = co_await MoveFiles(mds, ost, std::move(page->files), &found, &stuck);
    if (!moved.ok()) break;
    after = page->last;
    whole = page->end;
    if (whole) break;
    co_await mds->env.clock.Sleep(kDrainYield);
  }
  {
    std::lock_guard lock(mutex_);
    proto::DrainState& state = states_[ost];
    if (whole) {
      state.set_passes(state.passes() + 1);
      state.set_stuck_files(stuck);
      state.set_empty(found == 0 && !may_be_placed);
      if (stuck == 0) state.clear_problem();
    }
  }
}

// Not OK: the rest need not be tried now.
Task<Status> Drainer::MoveFiles(std::shared_ptr<Mds> mds, OstIndex ost, std::vector<Fid> files,
                                uint64_t* found, uint64_t* stuck) {
  for (const Fid& fid : files) {
    if (!IsDraining(*mds, ost)) co_return absl::CancelledError("it is drained no more");
    ++*found;
    Status moved = co_await MoveOne(mds, ost, fid);
    if (moved.ok()) continue;
    if (mds->closed) co_return moved;
    ++*stuck;
    NoteProblem(ost, absl::StrFormat("file %s%s is still there: %s", fid.ToString(),
                                     PathRemark(*mds->tables, fid), moved.message()));
    if (!mds->osts.IsUp(ost)) co_return moved;
  }
  co_return OkStatus();
}

Task<Status> Drainer::MoveOne(std::shared_ptr<Mds> mds, OstIndex ost, Fid fid) {
  MigrationWish wish;
  wish.off = ost;
  auto progress = std::make_shared<CopyProgress>();
  progress->bytes_per_second = mds->options.drain_rate;
  CO_RETURN_IF_ERROR(co_await Migrate(mds, fid, std::move(wish), progress));
  std::lock_guard lock(mutex_);
  proto::DrainState& state = states_[ost];
  state.set_moved_files(state.moved_files() + 1);
  state.set_moved_bytes(state.moved_bytes() + progress->copied);
  co_return OkStatus();
}

}  // namespace nacre::mds
