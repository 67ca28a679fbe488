#include "server/metadata/migration_jobs.h"

#include <cerrno>

#include "rpc/convert.h"
#include "server/metadata/migration.h"

namespace nacre::mds {
namespace {

constexpr size_t kMostJobs = 16;  // each has a buffer of some MiB
constexpr Duration kAnswer = std::chrono::milliseconds(500);
constexpr Duration kAskPatience = std::chrono::seconds(30);  // between two questions
constexpr Duration kLook = std::chrono::seconds(1);

StatusOr<MigrationWish> WishOf(const proto::MigrateFile& request) {
  MigrationWish wish;
  ASSIGN_OR_RETURN(wish.layout, CheckTemplate(request.layout()));
  wish.osts.assign(request.osts().begin(), request.osts().end());
  return wish;
}

}  // namespace

struct MigrationJobs::Job {
  explicit Job(MigrationWish wanted) : wish(std::move(wanted)) {}
  const MigrationWish wish;
  const std::shared_ptr<CopyProgress> progress = std::make_shared<CopyProgress>();
  std::atomic<Duration> asked{Duration{0}};

  void End(Status status) {
    std::lock_guard lock(mutex_);
    end_ = std::move(status);
    for (OneShot<Unit>& waiter : waiters_) waiter.Set({});
    waiters_.clear();
  }
  std::optional<Status> end() const {
    std::lock_guard lock(mutex_);
    return end_;
  }
  // Set when it has ended.
  void AtEnd(const OneShot<Unit>& waiter) {
    std::lock_guard lock(mutex_);
    std::erase_if(waiters_, [](const OneShot<Unit>& other) { return other.IsSet(); });
    waiters_.push_back(waiter);
    if (end_) waiters_.back().Set({});
  }

 private:
  mutable std::mutex mutex_;
  std::optional<Status> end_;
  std::vector<OneShot<Unit>> waiters_;
};

Task<StatusOr<proto::MigrateState>> MigrationJobs::Ask(std::shared_ptr<Mds> mds, proto::MigrateFile request) {
  const Fid fid = FromProto(request.fid());
  CO_ASSIGN_OR_RETURN(const JobPtr job, FindOrBegin(mds, fid, request));
  if (request.cancel()) job->progress->given_up = true;
  OneShot<Unit> answer;
  auto timer = mds->env.clock.After(mds->env.executor, kAnswer, [answer] { answer.Set({}); });
  job->AtEnd(answer);
  co_await answer.Wait();
  proto::MigrateState state;
  state.set_copied_bytes(job->progress->copied);
  state.set_total_bytes(job->progress->total);
  state.set_attempts(job->progress->attempts);
  const std::optional<Status> end = job->end();
  if (!end) co_return state;
  End(fid, job);
  CO_RETURN_IF_ERROR(*end);
  state.set_done(true);
  co_return state;
}

StatusOr<MigrationJobs::JobPtr> MigrationJobs::FindOrBegin(const std::shared_ptr<Mds>& mds, const Fid& fid,
                                                           const proto::MigrateFile& request) {
  RETURN_IF_ERROR(mds->tables->GetInode(fid).status());
  ASSIGN_OR_RETURN(MigrationWish wish, WishOf(request));
  JobPtr job;
  {
    std::lock_guard lock(mutex_);
    auto found = jobs_.find(fid);
    if (found != jobs_.end()) {
      found->second->asked = mds->env.clock.Now();
      return found->second;
    }
    if (request.cancel()) return ErrnoError(ENOENT, absl::StrCat(fid.ToString(), " is not being moved"));
    if (jobs_.size() >= kMostJobs)
      return ErrnoError(EAGAIN, absl::StrFormat("%d files are being moved already", jobs_.size()));
    job = std::make_shared<Job>(std::move(wish));
    job->asked = mds->env.clock.Now();
    jobs_[fid] = job;
  }
  Spawn(mds->env.executor, Run(mds, fid, job));
  Spawn(mds->env.executor, Watch(mds, fid, job));
  return job;
}

void MigrationJobs::End(const Fid& fid, const JobPtr& job) {
  std::lock_guard lock(mutex_);
  auto found = jobs_.find(fid);
  if (found != jobs_.end() && found->second == job) jobs_.erase(found);
}

Task<void> MigrationJobs::Run(std::shared_ptr<Mds> mds, Fid fid, JobPtr job) {
  MigrationWish wish = job->wish;
  job->End(co_await Migrate(mds, fid, std::move(wish), job->progress));
}

// Also takes away what has ended and nobody asks about.
Task<void> MigrationJobs::Watch(std::shared_ptr<Mds> mds, Fid fid, JobPtr job) {
  while (!mds->closed) {
    co_await mds->env.clock.Sleep(kLook);
    const bool asked = mds->env.clock.Now() - job->asked.load() < kAskPatience;
    if (!asked) job->progress->given_up = true;
    if (!asked && job->end()) break;
  }
  mds->migrations.End(fid, job);
}

}  // namespace nacre::mds
