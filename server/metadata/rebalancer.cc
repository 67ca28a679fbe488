#include "server/metadata/rebalancer.h"

#include <algorithm>
#include <cerrno>
#include <map>

#include "common/log.h"
#include "server/metadata/moved_space.h"
#include "server/metadata/object_copy.h"
#include "server/metadata/rebalance_run.h"

namespace nacre::mds {
namespace {

Status CheckThreshold(uint32_t threshold) {
  if (threshold >= 1 && threshold <= kMostRebalanceThreshold) return OkStatus();
  return ErrnoError(
      EINVAL, absl::StrFormat("a threshold of %d hundredths of a percentage point: 1 to %d are possible",
                              threshold, kMostRebalanceThreshold));
}

// Adds how even OSTs are by what they say.
void ShowClasses(const Mds& mds, proto::RebalanceState* state) {
  std::map<uint32_t, proto::OstClass> classes;
  for (const Balance::Class& one : Balance(PresentSpace(mds), 0).Classes()) {
    proto::OstClass& shown = classes[one.copies];
    shown.set_osts(one.osts);
    shown.set_mean(100 * one.mean);
    shown.set_fullest(100 * one.fullest);
    shown.set_emptiest(100 * one.emptiest);
    shown.set_excess_bytes(one.excess_bytes);
  }
  for (const OstIndex ost : mds.osts.Known()) {
    if (mds.osts.UseOf(ost) != cluster::OstUse::kActive || mds.osts.IsUp(ost)) continue;
    proto::OstClass& shown = classes[mds.osts.CopiesOf(ost)];
    shown.set_down(shown.down() + 1);
  }
  for (auto& [copies, shown] : classes) {
    shown.set_copies(copies);
    *state->add_classes() = std::move(shown);
  }
}

bool IsEven(const proto::RebalanceState& state, uint32_t threshold) {
  return std::ranges::all_of(state.classes(), [threshold](const proto::OstClass& one) {
    return 100 * (one.fullest() - one.emptiest()) <= threshold;
  });
}

// OSTs that are down may make it uneven when they are back.
bool MayBecomeUneven(const proto::RebalanceState& state) {
  return std::ranges::any_of(state.classes(), [](const proto::OstClass& one) {
    return one.down() > 0 && one.osts() + one.down() > 1;
  });
}

}  // namespace

void Rebalancer::Resume(const std::shared_ptr<Mds>& mds) {
  auto value = mds->tables->Get(TableKey(Table::kRebalance));
  if (absl::IsNotFound(value.status())) return;
  auto record = value.ok() ? ParseRebalance(*value) : StatusOr<RebalanceRecord>(value.status());
  if (record.ok()) return Begin(mds, *record);
  std::string problem = absl::StrFormat(
      "files are not spread over OSTs any more, for what says so cannot be read (%s): "
      "nacre ost rebalance begins anew",
      std::string(record.status().message()));
  LogError("%s", problem);
  mds->NoteProblem(std::move(problem));
}

Task<StatusOr<proto::RebalanceState>> Rebalancer::Ask(std::shared_ptr<Mds> mds,
                                                      proto::RebalanceOsts request) {
  const bool starts = request.action() == proto::RebalanceOsts::START;
  const bool looks = request.action() == proto::RebalanceOsts::LOOK;
  if (starts || looks) CO_RETURN_IF_ERROR(CheckThreshold(request.threshold()));
  if (starts) {
    CO_RETURN_IF_ERROR(co_await Start(mds, request.threshold()));
  } else if (request.action() == proto::RebalanceOsts::STOP) {
    CO_RETURN_IF_ERROR(co_await Stop(mds));
  } else if (!looks) {
    co_return ErrnoError(EPROTO,
                         absl::StrFormat("action %d is none that this version knows", request.action()));
  }
  proto::RebalanceState state = State(*mds).value_or(proto::RebalanceState());
  if (state.classes().empty()) ShowClasses(*mds, &state);
  if (looks || !state.running()) state.set_threshold(request.threshold());
  if (looks || (starts && !state.running())) state.set_even(IsEven(state, request.threshold()));
  co_return state;
}

Task<Status> Rebalancer::Start(std::shared_ptr<Mds> mds, uint32_t threshold) {
  auto guard = co_await changing_.Lock();
  std::optional<RebalanceRecord> run;
  {
    std::lock_guard lock(mutex_);
    run = run_;
  }
  if (run && run->threshold == threshold) co_return OkStatus();
  if (!run) {
    proto::RebalanceState now;
    ShowClasses(*mds, &now);
    if (IsEven(now, threshold) && !MayBecomeUneven(now)) co_return OkStatus();
    run.emplace();
    CO_ASSIGN_OR_RETURN(run->run, co_await mds->ids.NextObjectSequence());
    run->first_sequence = run->run;
  }
  run->threshold = threshold;
  CO_RETURN_IF_ERROR(co_await Store(mds, run));
  Begin(mds, *run);
  co_return OkStatus();
}

Task<Status> Rebalancer::Stop(std::shared_ptr<Mds> mds) {
  auto guard = co_await changing_.Lock();
  {
    std::lock_guard lock(mutex_);
    if (!run_) co_return OkStatus();
  }
  CO_RETURN_IF_ERROR(co_await Store(mds, std::nullopt));
  std::lock_guard lock(mutex_);
  EndLocked(/*even=*/false, "an administrator has stopped it");
  co_return OkStatus();
}

Task<Status> Rebalancer::End(std::shared_ptr<Mds> mds, RebalanceRecord run, bool even, std::string why) {
  auto guard = co_await changing_.Lock();
  if (!Runs(run)) co_return OkStatus();
  CO_RETURN_IF_ERROR(co_await Store(mds, std::nullopt));
  LogInfo("files are not spread over OSTs any more: %s", why);
  std::lock_guard lock(mutex_);
  EndLocked(even, std::move(why));
  co_return OkStatus();
}

Task<StatusOr<RebalanceRecord>> Rebalancer::Renew(std::shared_ptr<Mds> mds, RebalanceRecord run) {
  auto guard = co_await changing_.Lock();
  if (!Runs(run)) co_return run;
  RebalanceRecord renewed = run;
  CO_ASSIGN_OR_RETURN(renewed.first_sequence, co_await mds->ids.NextObjectSequence());
  CO_RETURN_IF_ERROR(co_await Store(mds, renewed));
  std::lock_guard lock(mutex_);
  run_ = renewed;
  co_return renewed;
}

Task<Status> Rebalancer::Store(std::shared_ptr<Mds> mds, std::optional<RebalanceRecord> run) {
  KvBatch batch;
  if (run)
    batch.Put(TableKey(Table::kRebalance), EncodeRebalance(*run));
  else
    batch.Erase(TableKey(Table::kRebalance));
  CO_RETURN_IF_ERROR(co_await mds->tables->CommitBatch(std::move(batch)));
  co_return co_await mds->tables->Sync();
}

void Rebalancer::Begin(const std::shared_ptr<Mds>& mds, const RebalanceRecord& run) {
  {
    std::lock_guard lock(mutex_);
    if (!run_) state_.Clear();
    run_ = run;
    state_.set_running(true);
    state_.set_run(run.run);
    state_.set_threshold(run.threshold);
    if (std::exchange(works_, true)) return;
  }
  Spawn(mds->env.executor, Run(mds));
}

// Call it with mutex_ held.
void Rebalancer::EndLocked(bool even, std::string why) {
  run_.reset();
  state_.set_running(false);
  state_.set_even(even);
  if (even) state_.clear_stuck_files();
  if (even) state_.clear_problem();
  state_.set_end(std::move(why));
  if (copy_ != nullptr) copy_->given_up = true;
}

std::optional<RebalanceRecord> Rebalancer::NextRun() {
  std::lock_guard lock(mutex_);
  works_ = run_.has_value();
  return run_;
}

Task<void> Rebalancer::Run(std::shared_ptr<Mds> mds) {
  co_await mds->sessions.recovery().Wait();
  RebalanceRun work(mds);
  while (!mds->closed) {
    const std::optional<RebalanceRecord> run = mds->rebalancer.NextRun();
    if (!run) co_return;
    co_await work.Work(*run);
  }
}

std::optional<proto::RebalanceState> Rebalancer::State(const Mds& mds) const {
  proto::RebalanceState state;
  {
    std::lock_guard lock(mutex_);
    if (state_.run() == 0) return std::nullopt;
    state = state_;
  }
  ShowClasses(mds, &state);
  return state;
}

bool Rebalancer::Runs(const RebalanceRecord& run) const {
  std::lock_guard lock(mutex_);
  return run_ == run;
}

void Rebalancer::NoteMoved(uint64_t bytes) {
  std::lock_guard lock(mutex_);
  state_.set_moved_files(state_.moved_files() + 1);
  state_.set_moved_bytes(state_.moved_bytes() + bytes);
}

void Rebalancer::NoteStuck(uint64_t files, std::string problem) {
  std::lock_guard lock(mutex_);
  if (!run_) return;
  state_.set_stuck_files(files);
  if (!problem.empty()) state_.set_problem(std::move(problem));
}

void Rebalancer::ForgetStuck() {
  std::lock_guard lock(mutex_);
  state_.clear_stuck_files();
  state_.clear_problem();
}

void Rebalancer::SetCopy(std::shared_ptr<CopyProgress> copy) {
  std::lock_guard lock(mutex_);
  copy_ = std::move(copy);
  if (copy_ != nullptr && !run_) copy_->given_up = true;
}

}  // namespace nacre::mds
