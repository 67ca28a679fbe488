#include "server/replication/member.h"

#include <absl/strings/str_format.h>

#include <optional>

#include "common/log.h"
#include "server/replication/follower.h"
#include "server/replication/primary.h"

namespace nacre::replication {
namespace {

constexpr Duration kAnnounceAgain = 1s;

class OneMember : public Member, public std::enable_shared_from_this<OneMember> {
 public:
  OneMember(MemberEnvironment environment, MemberOptions options, std::unique_ptr<StoreCopy> copy,
            bool own_mdt)
      : environment_(environment),
        options_(std::move(options)),
        copy_(std::move(copy)),
        judge_(environment.coordinator, options_.prefix),
        neighbours_(environment.connector, judge_, options_.name),
        follower_(environment, options_, *copy_, judge_, neighbours_, own_mdt) {}

  void Begin() { Spawn(environment_.executor, Announce(shared_from_this())); }

  Task<StatusOr<Primacy>> AwaitPrimary() override {
    auto self = shared_from_this();
    CO_ASSIGN_OR_RETURN(Judge::Known known, co_await follower_.AwaitTurn());
    const MdtRecord record = known.record;
    LogInfo("this MDS is the primary of the filesystem %s, in epoch %d", record.filesystem, record.epoch);
    auto in_sync = std::make_shared<InSync>(options_, environment_.clock, judge_, std::move(known));
    auto primary = std::make_shared<Primary>(environment_, options_, *copy_, neighbours_, in_sync);
    {
      std::lock_guard lock(mutex_);
      in_sync_ = in_sync;
      primary_ = primary;
    }
    CO_RETURN_IF_ERROR(co_await primary->Start());
    co_return Primacy{record.epoch, absl::StrFormat("copies of %s, %d", record.filesystem, record.losses)};
  }

  KvStore& store() override { return *primary(); }

  Task<Status> AwaitEnd() override {
    std::shared_ptr<InSync> in_sync = this->in_sync();
    co_return co_await in_sync->AwaitEnd();
  }

  bool MayServe() const override {
    std::shared_ptr<InSync> in_sync = this->in_sync();
    return in_sync != nullptr && in_sync->MayServe();
  }

  Task<Status> AwaitAuthority() override {
    std::shared_ptr<InSync> in_sync = this->in_sync();
    if (in_sync == nullptr) co_return absl::UnavailableError("this MDS is not the primary");
    co_return co_await in_sync->AwaitAuthority();
  }

  void WhenKept(absl::AnyInvocable<void(bool kept)> done) override {
    std::shared_ptr<Primary> primary = this->primary();
    if (primary == nullptr) return done(false);
    primary->WhenKept(std::move(done));
  }

  std::string primary_address() const override {
    if (primary() != nullptr) return options_.address;
    return neighbours_.address(follower_.primary());
  }

  proto::MdtCopies Describe() const override {
    std::shared_ptr<Primary> primary = this->primary();
    if (primary != nullptr) return primary->Describe();
    proto::MdtCopies copies;
    copies.set_primary(follower_.primary());
    copies.set_epoch(copy_->position().epoch);
    copies.set_sequence(copy_->position().sequence);
    return copies;
  }

  std::string Problem() const override {
    std::shared_ptr<Primary> primary = this->primary();
    return primary != nullptr ? primary->Problem() : "";
  }

  Task<proto::CopyReply> Exchange(proto::CopyRequest request) override {
    auto self = shared_from_this();
    std::shared_ptr<Primary> primary = this->primary();
    if (primary != nullptr) co_return co_await primary->Handle(std::move(request));
    co_return co_await follower_.Handle(std::move(request));
  }

  Task<Status> Stop() override {
    auto self = shared_from_this();
    stopped_ = true;
    follower_.Stop();
    std::shared_ptr<Primary> primary = this->primary();
    if (primary != nullptr) co_await primary->Resign();
    co_return co_await copy_->EndClean();
  }

 private:
  std::shared_ptr<Primary> primary() const {
    std::lock_guard lock(mutex_);
    return primary_;
  }
  std::shared_ptr<InSync> in_sync() const {
    std::lock_guard lock(mutex_);
    return in_sync_;
  }

  // Says where this member is, until the coordinator knows, and learns where the others are.
  static Task<void> Announce(std::shared_ptr<OneMember> self) {
    bool announced = false;
    while (!self->stopped_ && self->primary() == nullptr) {
      if (!announced) {
        Status status = co_await self->judge_.Announce(self->options_.name, self->options_.address);
        announced = status.ok();
        if (!announced) LogWarning("coordinator: %s; trying again", status.message());
      }
      (void)co_await self->neighbours_.Refresh();
      co_await self->environment_.clock.Sleep(kAnnounceAgain);
    }
    while (!self->stopped_ && !announced) {
      announced = (co_await self->judge_.Announce(self->options_.name, self->options_.address)).ok();
      if (!announced) co_await self->environment_.clock.Sleep(kAnnounceAgain);
    }
  }

  const MemberEnvironment environment_;
  const MemberOptions options_;
  const std::unique_ptr<StoreCopy> copy_;
  Judge judge_;
  Neighbours neighbours_;
  Follower follower_;
  std::atomic<bool> stopped_{false};

  mutable std::mutex mutex_;
  std::shared_ptr<InSync> in_sync_;
  std::shared_ptr<Primary> primary_;
};

}  // namespace

Task<StatusOr<std::shared_ptr<Member>>> Member::Start(MemberEnvironment environment, MemberOptions options) {
  CO_ASSIGN_OR_RETURN(std::unique_ptr<StoreCopy> copy,
                      co_await StoreCopy::Open(&environment.store, options.boot, options.log_bytes));
  CO_ASSIGN_OR_RETURN(const bool empty, copy->Empty());
  const bool own_mdt = !empty && copy->filesystem().empty() && !copy->installing();
  auto member = std::make_shared<OneMember>(environment, std::move(options), std::move(copy), own_mdt);
  member->Begin();
  co_return member;
}

Task<Status> MarkBlank(KvStore* store) { return StoreCopy::MarkBlank(store); }

}  // namespace nacre::replication
