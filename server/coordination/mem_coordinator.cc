#include "server/coordination/mem_coordinator.h"

#include <absl/strings/match.h>
#include <absl/strings/str_format.h>

#include <algorithm>
#include <cerrno>
#include <list>
#include <mutex>
#include <set>

namespace nacre::coordination {
namespace {

constexpr Duration kOpenPause = 50ms;  // between a watch's attempts

constexpr const char* kNoLeader = "etcd has no leader";
constexpr const char* kNoAnswer = "etcd did not answer in time";

// One watch as etcd and the client's side of the stream know it.
struct MemWatchState {
  std::string client;
  std::string prefix;
  int64_t after = 0;
  bool standing = false;
  bool stood = false;      // once
  bool unnoticed = false;  // the client has not noticed that it does not stand any more
  bool gap = false;
  bool changed = false;
  OneShot<Unit> news;
};

}  // namespace

class MemEtcd::Service : public std::enable_shared_from_this<MemEtcd::Service> {
 public:
  // The answer that a client waits for; empty: none came.
  template <typename Reply>
  using Pending = OneShot<StatusOr<Reply>>;

  Service(Clock& clock, Random& random, Executor executor)
      : clock_(clock), random_(random), executor_(std::move(executor)) {}

  void SetFaults(MemEtcdFaults faults) {
    std::lock_guard lock(mutex_);
    faults_ = faults;
  }

  void LoseLeader(Duration time) {
    std::lock_guard lock(mutex_);
    ++terms_;
    leader_again_ = std::max(leader_again_, clock_.Now() + time);
    for (const auto& watch : watches_) {
      if (random_.OneIn(2)) Break(*watch);
    }
  }

  void Cut(const std::string& client) {
    std::lock_guard lock(mutex_);
    cut_.insert(client);
    for (const auto& watch : watches_) {
      if (watch->client == client) Break(*watch);
    }
  }

  void Heal(const std::string& client) {
    std::lock_guard lock(mutex_);
    cut_.erase(client);
  }

  void Compact() {
    std::lock_guard lock(mutex_);
    compacted_ = revision_;
    changes_.clear();
  }

  std::map<std::string, Entry> Contents() const {
    std::lock_guard lock(mutex_);
    return data_;
  }

  int64_t revision() const {
    std::lock_guard lock(mutex_);
    return revision_;
  }

  bool Idle() const {
    std::lock_guard lock(mutex_);
    return under_way_.empty();
  }

  void AskFor(const std::string& client, std::string prefix, bool whole_prefix, Pending<Listing> pending) {
    std::lock_guard lock(mutex_);
    Travel(client, faults_.lose_request_one_in, Delay(),
           [client, prefix = std::move(prefix), whole_prefix, pending](Service& self) {
             if (self.Leaderless()) {
               if (self.random_.OneIn(2)) self.Refuse(client, pending);
               return;
             }
             self.Answer<Listing>(client, pending, self.Read(prefix, whole_prefix));
           });
  }

  void AskFor(const std::string& client, Transaction transaction, Pending<Outcome> pending) {
    std::lock_guard lock(mutex_);
    Duration delay = Delay();
    if (Chance(faults_.late_one_in)) delay += Below(faults_.max_late);
    Travel(client, faults_.lose_request_one_in, delay,
           [client, transaction = std::move(transaction), pending](Service& self) mutable {
             self.Arrived(client, std::move(transaction), pending);
           });
  }

  void Add(const std::shared_ptr<MemWatchState>& watch) {
    std::lock_guard lock(mutex_);
    watches_.push_back(watch);
  }

  void Remove(const std::shared_ptr<MemWatchState>& watch) {
    std::lock_guard lock(mutex_);
    watches_.remove(watch);
  }

  // Opens the watch if it does not stand and can. Returns what is to be told, if anything is, and how to be
  // woken else.
  std::optional<Hint> Look(MemWatchState& watch, OneShot<Unit>* news) {
    std::lock_guard lock(mutex_);
    if (!watch.standing && !Leaderless() && !cut_.contains(watch.client)) Open(watch);
    watch.news = *news;
    if (!watch.standing) return std::nullopt;
    const bool gap = std::exchange(watch.gap, false), changed = std::exchange(watch.changed, false);
    if (gap) return Hint::kGap;
    if (changed) return Hint::kChanged;
    return std::nullopt;
  }

  // Whether its client hears nothing and has not noticed, and whether it stands.
  bool SeemsToStand(const MemWatchState& watch) const {
    std::lock_guard lock(mutex_);
    return watch.standing || watch.unnoticed;
  }
  bool Stands(const MemWatchState& watch) const {
    std::lock_guard lock(mutex_);
    return watch.standing;
  }

 private:
  using Message = absl::AnyInvocable<void(Service&)>;

  // All below: the caller holds mutex_.
  bool Chance(uint64_t one_in) { return one_in != 0 && random_.OneIn(one_in); }
  Duration Below(Duration bound) {
    return Duration(bound <= 0ns ? 0 : random_.Below(static_cast<uint64_t>(bound.count())));
  }
  Duration Delay() { return Below(faults_.max_delay); }
  bool Leaderless() { return clock_.Now() < leader_again_; }

  // Between etcd and the client, either way.
  void Travel(const std::string& client, uint64_t lose_one_in, Duration delay, Message arrive) {
    if (Chance(lose_one_in) || cut_.contains(client)) return;
    Later(delay, std::move(arrive));
  }

  void Later(Duration delay, Message message) {
    const uint64_t number = next_++;
    auto run = [weak = weak_from_this(), number, message = std::move(message)]() mutable {
      const std::shared_ptr<Service> self = weak.lock();
      if (self == nullptr) return;
      std::lock_guard lock(self->mutex_);
      self->under_way_.erase(number);
      message(*self);
    };
    under_way_[number] = clock_.After(executor_, delay, std::move(run));
  }

  template <typename Reply>
  void Answer(const std::string& client, Pending<Reply> pending, StatusOr<Reply> reply) {
    Travel(client, faults_.lose_answer_one_in, Delay(),
           [client, pending, reply = std::move(reply), term = terms_](Service& self) mutable {
             if (self.cut_.contains(client)) return;
             if (term != self.terms_ && self.random_.OneIn(2)) reply = ErrnoError(ENOTCONN, kNoLeader);
             pending.Set(std::move(reply));
           });
  }

  template <typename Reply>
  void Refuse(const std::string& client, Pending<Reply> pending) {
    Answer<Reply>(client, pending, ErrnoError(ENOTCONN, kNoLeader));
  }

  void Arrived(const std::string& client, Transaction transaction, Pending<Outcome> pending) {
    if (!Leaderless()) return Answer<Outcome>(client, pending, CarryOut(transaction));
    const uint64_t fate = random_.Below(3);
    if (fate == 0) Refuse(client, pending);
    if (fate != 1) return;
    Later(leader_again_ - clock_.Now() + Delay(),
          [client, transaction = std::move(transaction), pending](Service& self) {
            StatusOr<Outcome> outcome = self.CarryOut(transaction);
            if (self.random_.OneIn(2)) self.Answer(client, pending, std::move(outcome));
          });
  }

  Entry Find(const std::string& key) const {
    auto it = data_.find(key);
    return it == data_.end() ? Entry{key, "", 0} : it->second;
  }

  Listing Read(const std::string& prefix, bool whole_prefix) const {
    Listing listing;
    listing.revision = revision_;
    if (!whole_prefix) {
      listing.entries.push_back(Find(prefix));
      return listing;
    }
    for (auto it = data_.lower_bound(prefix); it != data_.end() && absl::StartsWith(it->first, prefix);
         ++it) {
      listing.entries.push_back(it->second);
    }
    return listing;
  }

  Outcome CarryOut(const Transaction& transaction) {
    Outcome outcome;
    outcome.revision = revision_;
    outcome.succeeded =
        std::all_of(transaction.conditions.begin(), transaction.conditions.end(),
                    [this](const Condition& one) { return Find(one.key).mod_revision == one.mod_revision; });
    if (!outcome.succeeded) {
      for (const std::string& key : NamedKeys(transaction)) outcome.present.push_back(Find(key));
      return outcome;
    }
    std::vector<std::string> changed;
    for (const Put& put : transaction.puts) {
      data_[put.key] = {put.key, put.value, revision_ + 1};
      changed.push_back(put.key);
    }
    for (const std::string& key : transaction.erases) {
      if (data_.erase(key) > 0) changed.push_back(key);
    }
    if (changed.empty()) return outcome;
    outcome.revision = ++revision_;
    for (const std::string& key : changed) changes_.emplace(revision_, key);
    Tell(changed);
    return outcome;
  }

  void Tell(const std::vector<std::string>& changed) {
    for (const auto& watch : watches_) {
      const bool concerned = std::any_of(changed.begin(), changed.end(), [&](const std::string& key) {
        return absl::StartsWith(key, watch->prefix);
      });
      if (!watch->standing || !concerned || Chance(faults_.lose_hint_one_in)) continue;
      Later(Below(faults_.max_hint_delay), [weak = std::weak_ptr(watch)](Service& self) {
        const std::shared_ptr<MemWatchState> watch = weak.lock();
        if (watch == nullptr || !watch->standing || self.cut_.contains(watch->client)) return;
        watch->changed = true;
        watch->news.Set({});
      });
    }
  }

  void Break(MemWatchState& watch) {
    watch.unnoticed = watch.standing && random_.OneIn(2);
    watch.standing = false;
    if (!watch.unnoticed) watch.news.Set({});
  }

  void Open(MemWatchState& watch) {
    watch.standing = true;
    watch.unnoticed = false;
    const bool behind = watch.after != 0 && watch.after < compacted_;
    if (std::exchange(watch.stood, true) || behind) {
      watch.gap = true;
      return;
    }
    if (watch.after == 0) return;
    watch.changed = std::any_of(changes_.upper_bound(watch.after), changes_.end(), [&](const auto& change) {
      return absl::StartsWith(change.second, watch.prefix);
    });
  }

  Clock& clock_;
  Random& random_;
  const Executor executor_;
  mutable std::mutex mutex_;
  MemEtcdFaults faults_;
  std::map<std::string, Entry> data_;
  int64_t revision_ = 1;  // etcd's first
  int64_t compacted_ = 0;
  std::multimap<int64_t, std::string> changes_;  // behind compacted_: revision -> key
  uint64_t terms_ = 0;                           // leaders that were lost
  Duration leader_again_ = Duration::min();
  std::set<std::string> cut_;
  std::list<std::shared_ptr<MemWatchState>> watches_;
  uint64_t next_ = 0;
  std::map<uint64_t, std::unique_ptr<TimerHandle>> under_way_;  // messages
};

class MemEtcd::ClientWatch : public Watch {
 public:
  ClientWatch(std::shared_ptr<Service> service, Clock& clock, std::string client, std::string prefix,
              int64_t after)
      : service_(std::move(service)), clock_(clock) {
    state_->client = std::move(client);
    state_->prefix = std::move(prefix);
    state_->after = after;
    service_->Add(state_);
  }
  ~ClientWatch() override { service_->Remove(state_); }

  Task<StatusOr<Hint>> Next(Duration timeout) override {
    const Duration end = clock_.Now() + timeout;
    const Executor executor = co_await CurrentExecutor();
    while (true) {
      OneShot<Unit> news;
      const std::optional<Hint> hint = service_->Look(*state_, &news);
      if (hint.has_value()) co_return *hint;
      const Duration left = end - clock_.Now();
      if (left <= 0ns && service_->SeemsToStand(*state_)) co_return Hint::kQuiet;
      if (left <= 0ns) co_return Unavailable("watch", timeout, "no connection to etcd");
      const Duration patience = service_->Stands(*state_) ? left : std::min(left, kOpenPause);
      const auto timer = clock_.After(executor, patience, [news] { news.Set({}); });
      co_await news.Wait();
    }
  }

 private:
  const std::shared_ptr<Service> service_;
  Clock& clock_;
  const std::shared_ptr<MemWatchState> state_ = std::make_shared<MemWatchState>();
};

class MemEtcd::Client : public Coordinator {
 public:
  Client(std::shared_ptr<Service> service, std::string name, Clock& clock)
      : service_(std::move(service)), name_(std::move(name)), clock_(clock) {}

  Task<StatusOr<Entry>> Get(std::string key, Duration timeout) override {
    CO_RETURN_IF_ERROR(CheckKey(key));
    std::string what = absl::StrFormat("reading key '%s'", ShownKey(key));
    Service::Pending<Listing> pending;
    service_->AskFor(name_, std::move(key), /*whole_prefix=*/false, pending);
    CO_ASSIGN_OR_RETURN(Listing listing, co_await Await(std::move(what), pending, timeout));
    co_return std::move(listing.entries.front());
  }

  Task<StatusOr<Listing>> List(std::string prefix, Duration timeout) override {
    std::string what = absl::StrFormat("reading keys '%s...'", ShownKey(prefix));
    std::string shown = ShownKey(prefix);
    Service::Pending<Listing> pending;
    service_->AskFor(name_, std::move(prefix), /*whole_prefix=*/true, pending);
    CO_ASSIGN_OR_RETURN(Listing listing, co_await Await(std::move(what), pending, timeout));
    if (listing.entries.size() > kMaxListEntries) {
      co_return ErrnoError(EINVAL,
                           absl::StrFormat("there are more than %d keys '%s...'", kMaxListEntries, shown));
    }
    co_return listing;
  }

  Task<StatusOr<Outcome>> Transact(Transaction transaction, Duration timeout) override {
    CO_RETURN_IF_ERROR(CheckTransaction(transaction));
    std::string what = absl::StrFormat("transaction on key '%s'", ShownKey(NamedKeys(transaction).front()));
    Service::Pending<Outcome> pending;
    service_->AskFor(name_, std::move(transaction), pending);
    co_return co_await Await(std::move(what), pending, timeout);
  }

  std::unique_ptr<Watch> NewWatch(std::string prefix, int64_t revision) override {
    return std::make_unique<ClientWatch>(service_, clock_, name_, std::move(prefix), revision);
  }

 private:
  template <typename Reply>
  Task<StatusOr<Reply>> Await(std::string what, Service::Pending<Reply> pending, Duration timeout) {
    const Executor executor = co_await CurrentExecutor();
    const auto timer =
        clock_.After(executor, timeout, [pending] { pending.Set(ErrnoError(ENOTCONN, kNoAnswer)); });
    StatusOr<Reply> reply = co_await pending.Wait();
    if (!reply.ok()) co_return Unavailable(what, timeout, std::string(reply.status().message()));
    co_return reply;
  }

  const std::shared_ptr<Service> service_;
  const std::string name_;
  Clock& clock_;
};

MemEtcd::MemEtcd(Clock& clock, Random& random, Executor executor)
    : service_(std::make_shared<Service>(clock, random, std::move(executor))) {}

MemEtcd::~MemEtcd() = default;

std::unique_ptr<Coordinator> MemEtcd::NewClient(std::string name, Clock& clock) {
  return std::make_unique<Client>(service_, std::move(name), clock);
}

void MemEtcd::SetFaults(MemEtcdFaults faults) { service_->SetFaults(faults); }
void MemEtcd::LoseLeader(Duration time) { service_->LoseLeader(time); }
void MemEtcd::Cut(const std::string& client) { service_->Cut(client); }
void MemEtcd::Heal(const std::string& client) { service_->Heal(client); }
void MemEtcd::Compact() { service_->Compact(); }
std::map<std::string, Entry> MemEtcd::Contents() const { return service_->Contents(); }
int64_t MemEtcd::revision() const { return service_->revision(); }
bool MemEtcd::Idle() const { return service_->Idle(); }

}  // namespace nacre::coordination
