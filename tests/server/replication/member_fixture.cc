#include "tests/server/replication/member_fixture.h"

#include <gtest/gtest.h>

#include "proto/copies.pb.h"
#include "server/replication/store_copy.h"

namespace nacre::replication {

// Carries messages from one member to another. They are lost where the way is cut; a process that is not
// there refuses at once. Those on their way arrive even when the sender is killed.
class TestChannel : public CopyChannel {
 public:
  TestChannel(MemberFixture& fixture, int from, int to) : way_{fixture, from, to} {}

  Task<StatusOr<proto::CopyReply>> Exchange(proto::CopyRequest request, Duration timeout) override {
    OneShot<StatusOr<proto::CopyReply>> answer;
    sim::Process* const caller = way_.fixture.machines[way_.from].process;
    auto timer = way_.fixture.world.clock().After(caller->executor(), timeout, [answer] {
      answer.Set(absl::DeadlineExceededError("no answer in time"));
    });
    way_.fixture.world.clock().At(Delay(way_), [way = way_, answer, request = std::move(request)]() mutable {
      Arrive(way, std::move(request), answer);
    });
    StatusOr<proto::CopyReply> reply = co_await answer.Wait();
    co_return reply;
  }

 private:
  struct Way {
    MemberFixture& fixture;
    int from, to;
    bool severed() const { return fixture.Severed(from, to); }
  };

  static Duration Delay(const Way& way) {
    return std::chrono::microseconds(50 + way.fixture.world.random().Below(500));
  }

  static void Arrive(const Way& way, proto::CopyRequest request, OneShot<StatusOr<proto::CopyReply>> answer) {
    MemberFixture::Machine& target = way.fixture.machines[way.to];
    if (way.severed()) return;
    if (target.process == nullptr || target.member == nullptr) {
      answer.Set(absl::UnavailableError("nobody listens there"));
      return;
    }
    auto handle = [](std::shared_ptr<Member> member, proto::CopyRequest request) -> Task<proto::CopyReply> {
      co_return co_await member->Exchange(std::move(request));
    };
    Spawn(target.process->executor(), handle(target.member, std::move(request)),
          [way, answer](proto::CopyReply reply) {
            way.fixture.world.clock().At(Delay(way), [way, answer, reply = std::move(reply)] {
              if (!way.severed()) answer.Set(reply);
            });
          });
  }

  const Way way_;
};

namespace {

std::string NameOf(int i) { return absl::StrCat("mds", i); }

class TestConnector : public CopyConnector {
 public:
  TestConnector(MemberFixture& fixture, int from) : fixture_(fixture), from_(from) {}
  StatusOr<std::shared_ptr<CopyChannel>> Open(const std::string& address) override {
    for (size_t i = 0; i < fixture_.machines.size(); ++i) {
      if (address == "at " + fixture_.machines[i].name)
        return std::make_shared<TestChannel>(fixture_, from_, static_cast<int>(i));
    }
    return absl::InvalidArgumentError(address);
  }

 private:
  MemberFixture& fixture_;
  const int from_;
};

Task<void> Live(MemberFixture* fixture, int i, MemberEnvironment environment, MemberOptions options) {
  auto member = co_await Member::Start(environment, std::move(options));
  if (!member.ok()) {
    ADD_FAILURE() << member.status();
    co_return;
  }
  fixture->machines[i].member = *member;
  fixture->machines[i].primacy = co_await (*member)->AwaitPrimary();
  if (!fixture->machines[i].primacy->ok()) co_return;
  Status end = co_await (*member)->AwaitEnd();
  fixture->machines[i].end = end;
}

}  // namespace

MemberFixture::MemberFixture(uint64_t seed, int members)
    : world(seed),
      random_(seed),
      etcd_process(world.Start(1000, "etcd")),
      etcd(world.clock(), random_, etcd_process->executor()) {
  options.prefix = "/fs/";
  for (int i = 0; i < members; ++i) {
    machines.emplace_back();
    machines.back().name = NameOf(i);
    if (i > 0) Wipe(i);
  }
}

MemberFixture::~MemberFixture() {
  for (size_t i = 0; i < machines.size(); ++i)
    if (machines[i].process != nullptr) Kill(static_cast<int>(i));
  world.KillAll();
}

void MemberFixture::Start(int i) {
  Machine& machine = machines[i];
  machine.process = world.Start(i, machine.name);
  machine.coordinator = etcd.NewClient(machine.name, machine.process->clock());
  machine.connector = std::make_unique<TestConnector>(*this, i);
  machine.primacy.reset();
  machine.end.reset();
  MemberEnvironment environment{machine.process->executor(), machine.process->clock(),
                                machine.process->random(),   *machine.disk,
                                *machine.coordinator,        *machine.connector};
  MemberOptions mine = options;
  mine.name = machine.name;
  mine.address = "at " + machine.name;
  mine.boot = absl::StrCat("boot ", machine.boots);
  Spawn(machine.process->executor(), Live(this, i, environment, mine));
}

void MemberFixture::Kill(int i) {
  world.Kill(machines[i].process);
  machines[i].process = nullptr;
  machines[i].member.reset();
  machines[i].primacy.reset();
  machines[i].disk->CrashProcess();
}

void MemberFixture::LosePower(int i) {
  Kill(i);
  machines[i].disk->LosePower(random_);
  ++machines[i].boots;
}

void MemberFixture::Stop(int i) {
  std::optional<Status> stopped;
  auto stop = [](std::shared_ptr<Member> member) -> Task<Status> { co_return co_await member->Stop(); };
  Spawn(machines[i].process->executor(), stop(machines[i].member),
        [&](Status status) { stopped = std::move(status); });
  EXPECT_TRUE(RunUntil([&] { return stopped.has_value(); }));
  EXPECT_TRUE(stopped->ok()) << *stopped;
  Kill(i);
}

void MemberFixture::Freeze(int i, bool frozen) { machines[i].process->Freeze(frozen); }

void MemberFixture::Wipe(int i) {
  machines[i].disk = std::make_unique<MemKv>();
  sim::Process* installer = world.Start(500 + i, "format");
  bool done = false;
  Spawn(installer->executor(), MarkBlank(machines[i].disk.get()), [&](Status status) {
    EXPECT_TRUE(status.ok()) << status;
    done = true;
  });
  EXPECT_TRUE(RunUntil([&] { return done; }));
  world.Kill(installer);
}

void MemberFixture::Cut(int i, int j) { cut_.insert({std::min(i, j), std::max(i, j)}); }

void MemberFixture::CutOff(int i) {
  for (int j = 0; j < static_cast<int>(machines.size()); ++j)
    if (j != i) Cut(i, j);
  etcd.Cut(machines[i].name);
}

void MemberFixture::HealAll() {
  cut_.clear();
  for (const Machine& machine : machines) etcd.Heal(machine.name);
}

int MemberFixture::Leader() const {
  for (int i = 0; i < static_cast<int>(machines.size()); ++i)
    if (machines[i].process != nullptr && Leads(i) && machines[i].member->MayServe()) return i;
  return -1;
}

std::string MemberFixture::InSync() {
  const auto contents = etcd.Contents();
  auto it = contents.find("/fs/mdt");
  proto::MdtRecord record;
  if (it == contents.end() || !record.ParseFromString(it->second.value)) return "";
  std::set<std::string> names;
  for (const std::string& name : record.in_sync()) names.insert(name.substr(3));
  std::string text;
  for (const std::string& name : names) absl::StrAppend(&text, text.empty() ? "" : " ", name);
  return text;
}

std::optional<Status> MemberFixture::Put(int i, std::string key, std::string value, Duration limit) {
  auto done = std::make_shared<std::optional<Status>>();
  KvBatch batch;
  batch.Put(std::move(key), std::move(value));
  auto commit = [](std::shared_ptr<Member> member, KvBatch batch) -> Task<Status> {
    Status committed = co_await member->store().Commit(std::move(batch));
    OneShot<bool> kept;
    member->WhenKept([kept](bool yes) { kept.Set(yes); });
    const bool yes = co_await kept.Wait();
    if (!yes) committed.Update(absl::UnavailableError("it has not been kept"));
    co_return committed;
  };
  Spawn(machines[i].process->executor(), commit(machines[i].member, std::move(batch)),
        [done](Status status) { *done = std::move(status); });
  RunUntil([&] { return done->has_value(); }, limit);
  return *done;
}

std::string MemberFixture::Get(int i, const std::string& key) const {
  return machines[i].disk->Get(key).value_or("");
}

std::string MemberFixture::Content(int i) const {
  std::string text;
  const auto entries = machines[i].disk->Scan({}, kOwnPrefix, 1 << 20);
  for (const KvEntry& entry : *entries) absl::StrAppend(&text, entry.key, "=", entry.value, " ");
  return text;
}

}  // namespace nacre::replication
