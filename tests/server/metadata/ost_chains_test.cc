// OSTs of several members as the MDS keeps them: OSSes that come, go and are told, and the way to their OST.
#include <cerrno>

#include "server/cluster/ost_record.h"
#include "tests/server/metadata/harness.h"

namespace nacre::mds {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr OstIndex kOst = 7;

// The OSS of one member of OST 7, which lives at "fake:NAME".
struct Oss {
  std::string name;
  uint64_t instance = 1;
  uint32_t copies = 2;
  bool alive = true;  // answers calls and sends heartbeats
  bool admitted = false;
  uint64_t objects = 0;
  uint32_t epoch = 0;  // of the chain that it knows
  std::string head;    // of that
  std::vector<std::string> heard;
  std::set<SessionId> fenced;
  proto::RegisterOssReply reply;
};

class OstChainsTest : public testing::Test {
 protected:
  OstChainsTest() {
    harness.osts.on_call = [this](const std::string& address, const proto::ObjectRequest& request) {
      return Take(address, request);
    };
    Spawn(harness.context.get_executor(), BeatHearts(this));
  }
  ~OstChainsTest() override { harness.osts.on_call = nullptr; }

  Oss* At(const std::string& address) {
    for (Oss& oss : osses)
      if ("fake:" + oss.name == address) return &oss;
    return nullptr;
  }
  // As a member does: only the head takes what does not come from the MGS.
  Status Take(const std::string& address, const proto::ObjectRequest& request) {
    Oss* oss = At(address);
    if (oss == nullptr) return OkStatus();
    if (!oss->alive) return absl::UnavailableError("nobody there");
    if (request.has_set_chain()) {
      const proto::SetChain& told = request.set_chain();
      EXPECT_EQ(told.member(), oss->name);
      EXPECT_GE(told.chain().epoch(), oss->epoch);
      oss->epoch = told.chain().epoch();
      oss->head = told.chain().members(0).uuid();
      order.push_back(absl::StrCat(oss->name, told.chain().epoch()));
      oss->heard.push_back(Text(told.chain()));
      return OkStatus();
    }
    if (request.has_fence()) {
      for (SessionId session : request.fence().more()) oss->fenced.insert(session);
      oss->fenced.insert(request.fence().session());
      oss->heard.push_back(oss->head == oss->name ? "fence as head" : "fence");
      return OkStatus();
    }
    ++asked[oss->name];
    if (oss->head != oss->name) return ErrnoError(ECONNRESET, "not the head");
    return OkStatus();
  }
  static std::string Text(const proto::Chain& chain) {
    std::string text;
    for (const auto& member : chain.members()) absl::StrAppend(&text, member.uuid());
    for (const auto& member : chain.joining()) absl::StrAppend(&text, "+", member.uuid());
    return text;
  }

  proto::RegisterOssRequest Registration(const Oss& oss) {
    proto::RegisterOssRequest request;
    request.set_address("fake:" + oss.name);
    request.set_instance(oss.instance);
    proto::OstInfo* info = request.add_osts();
    info->set_index(kOst);
    info->set_uuid(oss.name);
    info->set_total_bytes(1 << 30);
    info->set_available_bytes(1 << 30);
    info->set_copies(oss.copies);
    info->set_objects(oss.objects);
    info->set_chain_epoch(oss.epoch);
    return request;
  }
  // Sends an OSS's heartbeat, or its registration until it is admitted. osses is a deque: elements stay in
  // place.
  static Task<void> BeatOne(OstChainsTest* test, Oss* oss) {
    proto::RegisterOssRequest request = test->Registration(*oss);
    if (oss->admitted) {
      proto::HeartbeatRequest beat;
      beat.set_address(request.address());
      beat.set_instance(request.instance());
      *beat.mutable_osts() = request.osts();
      auto heard = co_await test->harness.server->Heartbeat(std::move(beat));
      oss->admitted = heard.status().error() == 0;
    }
    if (oss->admitted || test->harness.server == nullptr) co_return;
    const uint64_t instance = oss->instance;
    auto reply = co_await test->harness.server->RegisterOss(std::move(request));
    if (instance != oss->instance) co_return;
    oss->admitted = reply.status().error() == 0;
    oss->reply = std::move(reply);
  }
  static Task<void> BeatHearts(OstChainsTest* test) {
    while (true) {
      co_await test->harness.clock.Sleep(std::chrono::milliseconds(500));
      for (Oss& oss : test->osses) {
        if (oss.alive && test->harness.server != nullptr)
          Spawn(test->harness.context.get_executor(), BeatOne(test, &oss));
      }
    }
  }
  Oss* Add(const std::string& name) {
    Oss* oss = &osses.emplace_back();
    oss->name = name;
    return oss;
  }
  void RestartOss(Oss* oss) {
    ++oss->instance;
    oss->admitted = false;
    oss->alive = true;
    oss->epoch = 0;
    oss->head.clear();
  }
  proto::OstState State() {
    auto status = harness.Await(harness.server->GetStatus());
    return status.map().osts_size() == 1 ? status.map().osts(0) : proto::OstState();
  }
  // "A B+": the chain, and a mark if the OST is up.
  bool Becomes(const std::string& chain, Duration limit = std::chrono::seconds(10)) {
    return harness.RunUntil([&] { return Chain() == chain; }, limit);
  }
  std::string Chain() {
    std::string text;
    auto record = cluster::ParseOst(harness.store.Get(cluster::OstKey(kOst)).value_or(""));
    if (!record.ok()) return "none";
    for (const auto& member : record->members) {
      const bool joins = member.state == cluster::OstMember::State::kJoining;
      absl::StrAppend(&text, text.empty() ? "" : " ", member.uuid, member.in_sync() ? "" : joins ? "+" : "-");
    }
    return text;
  }
  proto::ReportChainReply Report(const Oss& head, const std::string& lost, const std::string& joined) {
    proto::ReportChainRequest report;
    report.set_ost(kOst);
    report.set_epoch(head.epoch);
    report.set_reporter(head.name);
    report.set_lost(lost);
    report.set_joined(joined);
    return harness.Await(harness.server->ReportChain(report));
  }
  bool AwaitUp(const std::string& head, Duration limit = std::chrono::seconds(20)) {
    const Duration end = harness.clock.Now() + limit;
    while (harness.clock.Now() < end) {
      proto::OstState state = State();
      if (state.up() && state.address() == "fake:" + head) return true;
      harness.RunFor(std::chrono::milliseconds(50));
    }
    return false;
  }
  // A is the head, B follows.
  void MakePair() {
    a = Add("A");
    ASSERT_TRUE(AwaitUp("A"));
    b = Add("B");
    ASSERT_TRUE(Becomes("A B+"));
    harness.RunFor(std::chrono::seconds(1));
    auto joined = Report(*a, "", "B");
    ASSERT_THAT(joined, IsOk());
    EXPECT_EQ(Text(joined.chain()), "AB");
    harness.RunFor(std::chrono::seconds(1));
    ASSERT_EQ(Chain(), "A B");
    order.clear();
    a->heard.clear();
    b->heard.clear();
  }

  Harness harness{0};
  std::deque<Oss> osses;
  std::map<std::string, int> asked;  // other requests
  std::vector<std::string> order;    // of what was told: "A3": A of epoch 3
  Oss* a = nullptr;
  Oss* b = nullptr;
};

TEST_F(OstChainsTest, AnOstIsUpWhenItsHeadKnowsIt) {
  a = Add("A");
  ASSERT_TRUE(AwaitUp("A"));
  EXPECT_THAT(a->heard, ElementsAre("A"));
  EXPECT_EQ(a->reply.lease_ms(), 3000u);
  b = Add("B");
  ASSERT_TRUE(Becomes("A B+"));
  harness.RunFor(std::chrono::seconds(1));
  EXPECT_THAT(b->heard, ElementsAre("A+B"));
  EXPECT_THAT(a->heard, ElementsAre("A", "A+B"));
  EXPECT_THAT(order, ElementsAre("A1", "B2", "A2"));
  const proto::OstState state = State();
  EXPECT_TRUE(state.up());
  EXPECT_EQ(state.chain_epoch(), 2u);
  ASSERT_EQ(state.members_size(), 2);
  EXPECT_TRUE(state.members(0).in_sync());
  EXPECT_TRUE(state.members(1).joining());
  EXPECT_TRUE(state.members(1).up());
}

TEST_F(OstChainsTest, AThirdMemberIsRefusedAndSoIsAServerWithTwo) {
  MakePair();
  Oss third{"C"};
  auto refused = harness.Await(harness.server->RegisterOss(Registration(third)));
  EXPECT_THAT(refused, Fails(EEXIST));
  EXPECT_THAT(refused.status().message(), HasSubstr("belongs to its 2 members"));
  third.copies = 3;
  auto request = Registration(third);
  request.set_address("fake:A");
  EXPECT_THAT(harness.Await(harness.server->RegisterOss(request)), Fails(EINVAL));
  third.copies = 4;
  EXPECT_THAT(harness.Await(harness.server->RegisterOss(Registration(third))), Fails(EINVAL));
  EXPECT_EQ(Chain(), "A B");
}

TEST_F(OstChainsTest, ASilentHeadIsReplacedAndTheWayLeadsToTheNextOne) {
  MakePair();
  a->alive = false;
  const Duration died = harness.clock.Now();
  harness.RunFor(std::chrono::milliseconds(2700));
  EXPECT_EQ(Chain(), "A B");  // it may still serve
  EXPECT_FALSE(State().up());
  EXPECT_THAT(b->heard, IsEmpty());
  ASSERT_TRUE(AwaitUp("B"));
  EXPECT_LE(harness.clock.Now() - died, std::chrono::milliseconds(4000));
  EXPECT_THAT(b->heard, ElementsAre("B"));
  EXPECT_GT(asked["B"], 0);
  auto deposed = Report(*a, "B", "");
  EXPECT_THAT(deposed, Fails(ESTALE));
  // It comes back believing that it is the head.
  a->heard.clear();
  a->alive = true;
  ASSERT_TRUE(Becomes("B A+"));
  ASSERT_TRUE(harness.RunUntil([&] { return a->admitted; }));
  EXPECT_EQ(a->head, "B");
  EXPECT_TRUE(State().up());
}

TEST_F(OstChainsTest, ARestartedHeadIsReplacedAtOnce) {
  MakePair();
  RestartOss(a);
  ASSERT_TRUE(AwaitUp("B", std::chrono::seconds(1)));
  EXPECT_EQ(Chain(), "B A+");
  EXPECT_THAT(order, ElementsAre(HasSubstr("A"), HasSubstr("B")));
}

TEST_F(OstChainsTest, AfterALossOfPowerOneOfThemGoesOn) {
  MakePair();
  a->alive = b->alive = false;
  harness.RunFor(std::chrono::seconds(3));
  RestartOss(b);
  RestartOss(a);
  ASSERT_TRUE(AwaitUp("A", std::chrono::seconds(3)));
  EXPECT_TRUE(Becomes("A B+", std::chrono::seconds(1)));
}

TEST_F(OstChainsTest, ALostFollowerIsOutBeforeTheHeadIsAnswered) {
  MakePair();
  b->alive = false;
  const uint32_t epoch = a->epoch;
  auto lost = Report(*a, "B", "");
  ASSERT_THAT(lost, IsOk());
  EXPECT_EQ(lost.chain().epoch(), epoch + 1);
  EXPECT_EQ(Text(lost.chain()), "A");
  EXPECT_EQ(Chain(), "A B-");
  harness.LosePower();  // of the MDS: it was on stable storage
  EXPECT_EQ(Chain(), "A B-");
  a->admitted = false;
  ASSERT_TRUE(AwaitUp("A"));
}

// The record is stored, the MDS dies before anybody has been told.
TEST_F(OstChainsTest, AnMdsThatRestartsInTheMiddleFinishesIt) {
  MakePair();
  a->alive = false;
  ASSERT_TRUE(Becomes("B A-"));
  b->alive = false;  // and so could not be told
  b->heard.clear();
  harness.Restart();
  b->alive = true;
  b->admitted = false;
  ASSERT_TRUE(AwaitUp("B"));
  EXPECT_THAT(b->heard, testing::Contains("B"));
  EXPECT_EQ(Chain(), "B A-");
}

TEST_F(OstChainsTest, AFollowerThatCannotBeToldKeepsNobodyWaitingForLong) {
  MakePair();
  Oss* c = Add("C");
  c->copies = 3;
  ASSERT_TRUE(Becomes("A B C+"));
  ASSERT_TRUE(harness.RunUntil([&] { return c->admitted; }));
  a->alive = false;  // and at the same time
  c->alive = false;
  EXPECT_TRUE(AwaitUp("B", std::chrono::seconds(8)));
  EXPECT_TRUE(Becomes("B A- C-"));
}

// The head dies, and a session is evicted while there is none. The next one must refuse it before it serves,
// and hand that on when it knows the chain.
TEST_F(OstChainsTest, AnEvictionReachesTheNextHeadBeforeItServes) {
  MakePair();
  TestClient client(harness);
  a->alive = false;
  harness.RunFor(std::chrono::milliseconds(2600));
  proto::AdminRequest evict;
  evict.mutable_evict()->set_client(absl::StrCat(client.session));
  bool done = false;
  Spawn(harness.context.get_executor(), harness.server->Administer(evict),
        [&done](proto::AdminReply reply) { done = reply.status().error() == 0; });
  harness.RunFor(std::chrono::milliseconds(100));
  EXPECT_THAT(b->heard, IsEmpty());
  ASSERT_TRUE(AwaitUp("B"));
  ASSERT_EQ(b->heard.size(), 3u);
  EXPECT_THAT(b->heard, ElementsAre("fence", "B", "fence as head"));
  EXPECT_TRUE(b->fenced.contains(client.session));
  EXPECT_TRUE(a->fenced.empty());
  EXPECT_TRUE(harness.RunUntil([&] { return done; }, std::chrono::seconds(30)));
  auto record = harness.store.Scan(std::string(1, '\x22'), std::string(1, '\x23'), 10);
  EXPECT_THAT(*record, IsEmpty());
}

// Nobody is left who could be told, and nobody who could serve: the eviction ends, and whoever is the head
// next hears of it.
TEST_F(OstChainsTest, AnEvictionOutlivesAllMembers) {
  MakePair();
  TestClient client(harness);
  a->alive = b->alive = false;
  proto::AdminRequest evict;
  evict.mutable_evict()->set_client(absl::StrCat(client.session));
  bool done = false;
  Spawn(harness.context.get_executor(), harness.server->Administer(evict),
        [&done](proto::AdminReply reply) { done = reply.status().error() == 0; });
  EXPECT_TRUE(harness.RunUntil([&] { return done; }, std::chrono::seconds(20)));
  RestartOss(b);
  RestartOss(a);
  ASSERT_TRUE(AwaitUp("A"));
  ASSERT_GE(a->heard.size(), 3u);
  EXPECT_EQ(a->heard[0], "fence");
  EXPECT_THAT(a->heard[1], testing::StartsWith("A"));
  EXPECT_EQ(a->heard[2], "fence as head");
}

TEST_F(OstChainsTest, AnOstOfOneMemberCanGetMore) {
  a = Add("A");
  a->copies = 1;
  a->head = "A";  // of one: it waits for nobody
  ASSERT_TRUE(AwaitUp("A"));
  EXPECT_THAT(a->heard, IsEmpty());
  EXPECT_EQ(a->reply.lease_ms(), 10000u);
  RestartOss(a);
  a->copies = 2;
  ASSERT_TRUE(harness.RunUntil([&] { return a->admitted; }));
  b = Add("B");
  ASSERT_TRUE(Becomes("A B+"));
  ASSERT_TRUE(AwaitUp("A"));
  EXPECT_EQ(a->reply.lease_ms(), 3000u);
  EXPECT_THAT(a->heard, ElementsAre("A", "A+B"));
}

}  // namespace
}  // namespace nacre::mds
