#include "server/metadata/rebalance_run.h"

#include <algorithm>

#include "common/log.h"
#include "server/metadata/migration.h"
#include "server/metadata/ost_files.h"
#include "server/metadata/paths.h"

namespace nacre::mds {
namespace {

constexpr Duration kFirstVainPause = std::chrono::seconds(2);  // then twice as long each time
constexpr Duration kLongestVainPause = std::chrono::minutes(5);
constexpr int kMostVain = 6;  // rounds that move nothing; then it ends
constexpr Duration kSettlePatience = std::chrono::seconds(60);
constexpr Duration kStartPatience = std::chrono::seconds(30);
constexpr Duration kSettleLook = std::chrono::milliseconds(250);
constexpr Duration kPauseLook = std::chrono::milliseconds(500);
constexpr size_t kMostLeft = 4096;
constexpr Duration kFresh = std::chrono::seconds(2);  // then the OSTs' figures are looked at anew
constexpr Duration kRunYield = std::chrono::milliseconds(1);

uint64_t TakenBytes(const Inode& inode) { return inode.blocks * 512; }

// A copy costs all of a file's bytes: what is large and comes to another OST as a whole goes first.
struct LookOf {
  uint64_t least_bytes;
  double least_part;  // of the file's bytes
  bool may_cross;     // OSTs the mean (balance.h)
};
constexpr LookOf kLooks[] = {{32 << 20, 0.5, false}, {1 << 20, 0.25, false}, {0, 0, false}, {0, 0, true}};

}  // namespace

Task<void> RebalanceRun::Work(RebalanceRecord run) {
  run_ = run;
  vain_ = 0;
  co_await AwaitStart();
  while (Runs()) {
    Refresh();
    if (balance_->Spread() <= threshold()) {
      co_await AwaitGone();
      Refresh();
      if (Runs() && balance_->Spread() <= threshold()) co_await RestWhenEven();
      continue;
    }
    co_await RenewIfOthers();
    const Round round = co_await WorkRound();
    if (!Runs()) co_return;
    if (round.moved > 0) {
      vain_ = 0;
      co_await AwaitGone();
    } else {
      co_await RestWhenVain(round);
    }
  }
}

// Begins anew when OSTs have come or gone since the last round: files that have been moved by what was right
// then may be moved once more.
Task<void> RebalanceRun::RenewIfOthers() {
  std::set<OstIndex> osts;
  for (const Balance::Ost& ost : PresentSpace(*mds_)) osts.insert(ost.index);
  const std::set<OstIndex> before = std::exchange(osts_, osts);
  if (before.empty() || before == osts_) co_return;
  auto renewed = co_await mds_->rebalancer.Renew(mds_, run_);
  if (renewed.ok()) {
    run_ = *renewed;
  } else if (!mds_->closed) {
    LogError("that OSTs have come or gone could not be stored: %s", std::string(renewed.status().message()));
    osts_ = before;
  }
}

Task<void> RebalanceRun::RestWhenEven() {
  if (const std::optional<OstIndex> missing = Missing())
    co_await WaitFor(*missing);
  else
    co_await End(true, "OSTs are even");
}

Task<void> RebalanceRun::RestWhenVain(Round round) {
  if (const std::optional<OstIndex> missing = Missing(); missing && round.stuck == 0) {
    co_await WaitFor(*missing);
  } else if (missing || (round.stuck > 0 && vain_ < kMostVain)) {
    co_await Pause();
  } else if (round.stuck > 0) {
    co_await End(false, absl::StrFormat("%d files could not be moved", round.stuck));
  } else {
    co_await End(false, "no move of a whole file that has not moved yet would make them more even");
  }
}

void RebalanceRun::Refresh() {
  moved_.Settle(*mds_);
  balance_.emplace(moved_.Expected(*mds_), threshold() / 10);
  looked_ = mds_->env.clock.Now();
}

// Finds one that is down now, and may have to get files, or lose some, when it is back.
std::optional<OstIndex> RebalanceRun::Missing() const {
  std::vector<OstIndex> active = mds_->osts.Known();
  std::erase_if(active, [this](OstIndex ost) { return !mds_->osts.TakesObjects(ost); });
  for (const OstIndex ost : active) {
    const auto is_other = [&](OstIndex other) {
      return other != ost && mds_->osts.CopiesOf(other) == mds_->osts.CopiesOf(ost);
    };
    if (!mds_->osts.IsUp(ost) && std::ranges::any_of(active, is_other)) return ost;
  }
  return std::nullopt;
}

std::optional<Balance::Plan> RebalanceRun::PlanFor(const Inode& inode, int look) const {
  const LookOf& wanted = kLooks[look];
  if (inode.layout.object_sequence >= run_.first_sequence || TakenBytes(inode) < wanted.least_bytes)
    return std::nullopt;
  std::optional<Balance::Plan> plan = balance_->Better(inode, wanted.may_cross);
  const double least = wanted.least_part * static_cast<double>(TakenBytes(inode));
  if (plan && static_cast<double>(plan->bytes) < least) return std::nullopt;
  return plan;
}

bool RebalanceRun::IsEnough(int look) const {
  return kLooks[look].may_cross ? balance_->Spread() <= threshold() : balance_->IsSettled();
}

Task<RebalanceRun::Round> RebalanceRun::WorkRound() {
  Round round;
  mds_->rebalancer.ForgetStuck();
  for (int look = 0; look < static_cast<int>(std::size(kLooks)); ++look) {
    if (IsEnough(look)) continue;
    round.stuck = 0;
    Status looked = co_await WorkLook(look, &round);
    if (!looked.ok() && Runs()) {
      mds_->rebalancer.NoteStuck(++round.stuck, std::string(looked.message()));
      break;
    }
    if (!Runs()) break;
  }
  mds_->rebalancer.NoteStuck(round.stuck, "");
  LogInfo(
      "spreading files over OSTs: %d moved, %d could not be; they are going to be %.2f percentage points "
      "apart",
      round.moved, round.stuck, 100 * balance_->Spread());
  co_return round;
}

// Fails where it cannot be gone on with now.
Task<Status> RebalanceRun::WorkLook(int look, Round* round) {
  for (Fid after; Runs() && !IsEnough(look);) {
    Refresh();
    CO_ASSIGN_OR_RETURN(FilesFound page, FindFiles(*mds_, after, [this, look](const Inode& inode) {
                          return PlanFor(inode, look).has_value();
                        }));
    CO_RETURN_IF_ERROR(co_await MoveFiles(std::move(page.files), look, round));
    if (page.end) break;
    after = page.last;
    co_await mds_->env.clock.Sleep(kRunYield);
  }
  co_return OkStatus();
}

Task<Status> RebalanceRun::MoveFiles(std::vector<Fid> files, int look, Round* round) {
  for (const Fid& fid : files) {
    if (moved_.IsFull()) co_await AwaitGone();
    if (!Runs() || IsEnough(look)) co_return OkStatus();
    if (moved_.IsFull())
      co_return absl::UnavailableError("what files have left has not gone from their OSTs yet");
    if (mds_->env.clock.Now() - looked_ >= kFresh) Refresh();
    Status moved = co_await MoveOne(fid, look, round);
    if (moved.ok() || !Runs()) continue;
    ++round->stuck;
    mds_->rebalancer.NoteStuck(round->stuck,
                               absl::StrFormat("file %s%s stays where it is: %s", fid.ToString(),
                                               PathRemark(*mds_->tables, fid), moved.message()));
    Refresh();
  }
  co_return OkStatus();
}

// The file has been chosen a while ago: its plan is made anew.
Task<Status> RebalanceRun::MoveOne(Fid fid, int look, Round* round) {
  auto found = mds_->tables->GetInode(fid);
  if (absl::IsNotFound(found.status())) co_return OkStatus();
  CO_RETURN_IF_ERROR(found.status());
  const InodePtr before = *std::move(found);
  const std::optional<Balance::Plan> plan = PlanFor(*before, look);
  if (!plan) co_return OkStatus();
  MigrationWish wish;
  wish.from = before->layout.object_sequence;
  wish.stripes = plan->osts;
  wish.holds_writers = false;
  auto progress = std::make_shared<CopyProgress>();
  progress->bytes_per_second = mds_->options.drain_rate;
  mds_->rebalancer.SetCopy(progress);
  Status moved = co_await Migrate(mds_, fid, std::move(wish), progress);
  mds_->rebalancer.SetCopy(nullptr);
  CO_RETURN_IF_ERROR(moved);
  NoteMove(*before, *plan, round);
  co_return OkStatus();
}

// Sees by where the file lies whether it was moved: it may have been removed, emptied, or moved by somebody
// else.
void RebalanceRun::NoteMove(const Inode& before, const Balance::Plan& plan, Round* round) {
  auto after = mds_->tables->GetInode(before.fid);
  if (!after.ok() || (*after)->layout.object_sequence == before.layout.object_sequence) return;
  if (StripeGroups((*after)->layout) != plan.osts) return;
  const std::vector<OstIndex> from = StripeGroups(before.layout);
  std::vector<uint64_t> bytes = StripeBytes(**after);
  uint64_t elsewhere = 0;
  for (size_t i = 0; i < bytes.size(); ++i) elsewhere += from[i] == plan.osts[i] ? 0 : bytes[i];
  balance_->Move(from, plan.osts, bytes);
  moved_.Add(mds_->env.clock.Now(), before.layout.object_sequence, from, plan.osts, std::move(bytes));
  ++round->moved;
  mds_->rebalancer.NoteMoved(elsewhere);
}

// Waits at the beginning. Nobody remembers what was left before it, perhaps by the run that goes on here; and
// OSTs that have not come back after a restart yet say nothing.
Task<void> RebalanceRun::AwaitStart() {
  if (std::exchange(started_, true)) co_return;
  const Duration until = mds_->env.clock.Now() + kStartPatience;
  const std::string prefix = TableKey(Table::kMoved);
  auto left = mds_->tables->Scan(prefix, PrefixEnd(prefix), kMostLeft);
  while (left.ok() && Runs() && mds_->env.clock.Now() < until) {
    std::erase_if(*left, [this](const KvEntry& record) {
      return absl::IsNotFound(mds_->tables->Get(record.key).status());
    });
    if (left->empty() && !Missing()) co_return;
    co_await mds_->env.clock.Sleep(kSettleLook);
  }
}

// Waits until what files have left in this run is gone, and OSTs have said so. A client that reads by an old
// layout may keep it longer.
Task<void> RebalanceRun::AwaitGone() {
  const Duration until = mds_->env.clock.Now() + kSettlePatience;
  while (Runs() && mds_->env.clock.Now() < until) {
    moved_.Settle(*mds_);
    if (moved_.empty()) co_return;
    co_await mds_->env.clock.Sleep(kSettleLook);
  }
}

Task<void> RebalanceRun::WaitFor(OstIndex missing) {
  mds_->rebalancer.NoteStuck(
      0, absl::StrFormat("OST %d is down: it has its part of the files when it is back", missing));
  co_await Pause();
}

// Waits until it may be worth while to look once more: longer each time, but no longer than until an OST
// comes or goes.
Task<void> RebalanceRun::Pause() {
  const Duration pause = std::min(kFirstVainPause * (1 << std::min(vain_++, 10)), kLongestVainPause);
  const Duration until = mds_->env.clock.Now() + pause;
  const uint64_t version = mds_->osts.version();
  while (Runs() && mds_->env.clock.Now() < until) {
    co_await mds_->env.clock.Sleep(kPauseLook);
    if (mds_->osts.version() == version) continue;
    vain_ = 0;
    co_return;
  }
}

Task<void> RebalanceRun::End(bool even, std::string why) {
  Status ended = co_await mds_->rebalancer.End(mds_, run_, even, std::move(why));
  if (ended.ok() || mds_->closed) co_return;
  LogError("the end of spreading files over OSTs could not be stored: %s", std::string(ended.message()));
  co_await Pause();
}

}  // namespace nacre::mds
