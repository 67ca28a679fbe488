#include "tests/server/metadata/harness.h"

#include <boost/asio/post.hpp>

#include <cstring>

#include "common/crc32c.h"
#include "common/log.h"
#include "rpc/mutation.h"
#include "rpc/object_stub.h"

namespace nacre::mds {
namespace {

constexpr uint64_t kMostInChains = 511 * 4096;  // bytes of a range; an OST with several members takes no more

}  // namespace

class ManualClock::Handle : public TimerHandle {
 public:
  Handle(ManualClock* clock, std::pair<Duration, uint64_t> key) : clock_(clock), key_(key) {}
  ~Handle() override { clock_->timers_.erase(key_); }

 private:
  ManualClock* clock_;
  std::pair<Duration, uint64_t> key_;
};

// A timer's function may hold handles of other timers, so each is destroyed after it has left the map.
ManualClock::~ManualClock() {
  while (!timers_.empty()) auto node = timers_.extract(timers_.begin());
}

WallTime ManualClock::Wall() {
  auto seconds = std::chrono::floor<std::chrono::seconds>(now_);
  return {1'000'000'000 + seconds.count(), static_cast<uint32_t>((now_ - seconds).count())};
}

std::unique_ptr<TimerHandle> ManualClock::After(const Executor& executor, Duration delay,
                                                absl::AnyInvocable<void()> function) {
  std::pair<Duration, uint64_t> key{now_ + delay, next_++};
  timers_.emplace(key, Timer{executor, std::move(function)});
  return std::make_unique<Handle>(this, key);
}

bool ManualClock::RunNext(Duration limit) {
  if (timers_.empty() || timers_.begin()->first.first > limit) {
    now_ = std::max(now_, limit);
    return false;
  }
  auto node = timers_.extract(timers_.begin());
  now_ = std::max(now_, node.key().first);
  asio::post(node.mapped().executor, std::move(node.mapped().function));
  return true;
}

namespace {

class FakeRegion : public MemoryRegion {
 public:
  FakeRegion(std::byte* data, size_t size) : MemoryRegion(data, size) {}
};

class FakeOssPeer : public Peer {
 public:
  FakeOssPeer(FakeOsts* osts, std::string address) : osts_(osts), address_(std::move(address)) {}
  Task<StatusOr<std::string>> Call(CallRequest request, Duration) override {
    if (closed_) co_return absl::UnavailableError("closed");
    if (osts_->delay) co_await osts_->Delay(request);
    auto reply = osts_->Answer(address_, request);
    if (!reply.ok()) co_return reply.status();
    co_return reply->SerializeAsString();
  }
  PathInfo path() const override { return {"fake", ""}; }
  std::string address() const override { return address_; }
  void Close() override { closed_ = true; }

 private:
  FakeOsts* osts_;
  std::string address_;
  bool closed_ = false;
};

std::string Gather(const CallRequest& call) {
  std::string all;
  for (const MemorySpan& span : call.memory)
    all.append(reinterpret_cast<const char*>(span.data()), span.length);
  return all;
}

}  // namespace

StatusOr<std::shared_ptr<MemoryRegion>> FakeOsts::Register(std::byte* data, size_t size) {
  return std::make_shared<FakeRegion>(data, size);
}

StatusOr<std::shared_ptr<Peer>> FakeOsts::Connect(const std::string& address) {
  return std::make_shared<FakeOssPeer>(this, address);
}

StatusOr<std::unique_ptr<Listener>> FakeOsts::Listen(const std::string&, CallHandler) {
  return absl::UnimplementedError("nobody listens here");
}

size_t FakeOsts::CountObjects() const {
  size_t count = 0;
  for (const auto& [ost, all] : objects) count += all.size();
  return count;
}

Task<void> FakeOsts::Delay(CallRequest call) {
  proto::ObjectRequest request;
  if (request.ParseFromString(call.body)) co_await delay(request);
}

StatusOr<proto::ObjectReply> FakeOsts::Answer(const std::string& address, const CallRequest& call) {
  proto::ObjectRequest request;
  if (!request.ParseFromString(call.body)) return absl::InvalidArgumentError("not an ObjectRequest");
  if (on_call) RETURN_IF_ERROR(on_call(address, request));
  if (away.contains(request.ost())) return absl::UnavailableError("this OST is away");
  proto::ObjectReply reply;
  auto refusal = refuses.find(request.ost());
  if (refusal != refuses.end() && IsMutation(request))
    *reply.mutable_status() = ToProto(ErrnoError(refusal->second, "refused"));
  else
    reply = Do(request, call);
  reply.set_losses(losses_[request.ost()]);
  return reply;
}

void FakeOsts::Sync(OstIndex ost) {
  if (loses_power.erase(ost) == 0) {
    synced_[ost] = objects[ost];
    return;
  }
  objects[ost] = synced_[ost];
  ++losses_[ost];
}

// Whole blocks, into memory of one piece.
void FakeOsts::Read(const Object& object, const proto::ObjectRange& range, const CallRequest& call,
                    proto::ReadRangeResult* result) {
  const uint64_t end = std::min<uint64_t>(object.data.size(), range.offset() + range.length());
  const uint64_t length = end - std::min(end, range.offset());
  result->set_length(length);
  for (uint64_t at = 0; at < length; at += kBlockSize) {
    const std::string block = object.data.substr(range.offset() + at, std::min(kBlockSize, length - at));
    if (block.find_first_not_of('\0') == std::string::npos) {
      result->add_crc(0);
      result->add_holes()->set_offset(at);
      result->mutable_holes(result->holes_size() - 1)->set_length(block.size());
      continue;
    }
    result->add_crc(Crc32c(std::as_bytes(std::span(block.data(), block.size()))));
    std::memcpy(call.memory[0].data() + range.memory_offset() + at, block.data(), block.size());
  }
}

proto::ObjectReply FakeOsts::Do(const proto::ObjectRequest& request, const CallRequest& call) {
  proto::ObjectReply reply;
  auto& here = objects[request.ost()];
  if (request.has_write()) {
    calls.push_back(absl::StrCat("write ", request.ost()));
    std::string memory = Gather(call);
    for (const proto::WriteRange& write : request.write().ranges()) {
      const proto::ObjectRange& range = write.range();
      EXPECT_LE(range.length(), kMostInChains) << "an OST with several members would refuse it";
      Object& object = here[FromProto(range.object())];
      object.parent = FromProto(write.parent());
      object.data.resize(std::max<size_t>(object.data.size(), range.offset() + range.length()));
      object.data.replace(range.offset(), range.length(), memory, range.memory_offset(), range.length());
      ++object.version;
      bytes_written += range.length();
      reply.mutable_write()->set_blocks_delta(static_cast<int64_t>((range.length() + 4095) / 4096 * 8));
    }
  }
  if (request.has_destroy()) {
    calls.push_back(absl::StrCat("destroy ", request.ost()));
    for (const auto& id : request.destroy().objects()) here.erase(FromProto(id));
  }
  if (request.has_truncate()) {
    calls.push_back(absl::StrCat("truncate ", request.ost()));
    auto it = here.find(FromProto(request.truncate().object()));
    if (it != here.end() && it->second.data.size() > request.truncate().size()) {
      it->second.data.resize(request.truncate().size());
      ++it->second.version;
    }
  }
  if (request.has_stat()) {
    auto it = here.find(FromProto(request.stat().object()));
    reply.mutable_stat()->set_exists(it != here.end());
    if (it != here.end()) {
      reply.mutable_stat()->set_size(it->second.data.size());
      reply.mutable_stat()->set_blocks((it->second.data.size() + 4095) / 4096 * 8);
      *reply.mutable_stat()->mutable_parent() = ToProto(it->second.parent);
      reply.mutable_stat()->mutable_version()->set_changes(it->second.version);
    }
  }
  for (const proto::ObjectRange& range : request.read().ranges()) {
    calls.push_back(absl::StrCat("read ", request.ost()));
    auto it = here.find(FromProto(range.object()));
    proto::ReadRangeResult* result = reply.mutable_read()->add_ranges();
    if (it != here.end()) Read(it->second, range, call, result);
  }
  if (request.has_seek()) {
    auto it = here.find(FromProto(request.seek().object()));
    const size_t found = it == here.end() ? std::string::npos
                                          : it->second.data.find_first_not_of('\0', request.seek().offset());
    reply.mutable_seek()->set_found(found != std::string::npos);
    if (found != std::string::npos)
      reply.mutable_seek()->set_offset(std::max(found / kBlockSize * kBlockSize, request.seek().offset()));
  }
  if (request.has_list_grown()) {
    const proto::ListGrown& wanted = request.list_grown();
    for (const auto& [session, id] : grown[request.ost()]) {
      std::pair<SessionId, ObjectId> after{wanted.after().session(), FromProto(wanted.after().object())};
      if (wanted.session() != 0 && session != wanted.session()) continue;
      if (wanted.has_after() && std::pair(session, id) <= after) continue;
      proto::GrownObject* out = reply.mutable_list_grown()->add_objects();
      out->set_session(session);
      *out->mutable_object() = ToProto(id);
      auto it = here.find(id);
      out->set_exists(it != here.end());
      if (it == here.end()) continue;
      *out->mutable_parent() = ToProto(it->second.parent);
      out->set_size(it->second.data.size());
    }
    reply.mutable_list_grown()->set_end(true);
  }
  for (const proto::GrownObject& object : request.settle_grown().objects())
    grown[request.ost()].erase({object.session(), FromProto(object.object())});
  if (request.has_list()) {
    proto::ListObjectsReply* list = reply.mutable_list();
    auto it = request.list().has_after() ? here.upper_bound(FromProto(request.list().after())) : here.begin();
    for (; it != here.end() && list->objects_size() < static_cast<int>(request.list().limit()); ++it) {
      proto::ListedObject* listed = list->add_objects();
      *listed->mutable_object() = ToProto(it->first);
      *listed->mutable_parent() = ToProto(it->second.parent);
      listed->set_size(it->second.data.size());
    }
    list->set_end(it == here.end());
  }
  if (request.has_fence()) {
    calls.push_back(absl::StrCat("fence ", request.ost()));
    fenced[request.ost()].insert(request.fence().session());
    fenced[request.ost()].insert(request.fence().more().begin(), request.fence().more().end());
  }
  if (request.has_sync()) {
    calls.push_back(absl::StrCat("sync ", request.ost()));
    Sync(request.ost());
  }
  return reply;
}

proto::RegisterOssRequest Harness::Registration(OstIndex ost) {
  proto::RegisterOssRequest request;
  request.set_address(absl::StrCat("fake:", ost));
  request.set_instance(1);
  proto::OstInfo* info = request.add_osts();
  info->set_index(ost);
  info->set_uuid(absl::StrCat("ost-uuid-", ost));
  info->set_total_bytes(ost_bytes);
  info->set_available_bytes(ost_bytes - (used_bytes ? std::min(used_bytes(ost), ost_bytes) : 0));
  if (copies_.contains(ost)) info->set_copies(copies_[ost]);
  info->set_failing(osts.failing.contains(ost));
  return request;
}

void Harness::SetCopies(OstIndex ost, uint32_t copies) {
  copies_[ost] = copies;
  auto reply = Await(server->RegisterOss(Registration(ost)));
  ASSERT_EQ(reply.status().error(), 0u) << reply.status().message();
}

Harness::Harness(int osts, MetadataOptions options) : ost_count(osts), options(options) {
  SetLogLevel(LogLevel::kError);
  Start();
  RegisterOsts();
  Spawn(context.get_executor(), BeatHearts(this));
}

Task<void> Harness::BeatHearts(Harness* harness) {
  while (true) {
    co_await harness->clock.Sleep(std::chrono::seconds(1));
    for (int i = 0; i < harness->ost_count && harness->server != nullptr; ++i) {
      OstIndex ost = static_cast<OstIndex>(i);
      if (!harness->osts.away.contains(ost)) (void)co_await harness->BeatHeart(ost);
    }
  }
}

Task<Status> Harness::BeatHeart(OstIndex ost) {
  proto::RegisterOssRequest request = Registration(ost);
  proto::HeartbeatRequest beat;
  beat.set_address(request.address());
  beat.set_instance(request.instance());
  *beat.mutable_osts() = request.osts();
  auto heard = co_await server->Heartbeat(std::move(beat));
  if (heard.status().error() == 0 || server == nullptr) co_return OkStatus();
  auto registered = co_await server->RegisterOss(std::move(request));
  co_return FromProto(registered.status());
}

MetadataOptions Harness::WithoutLeases() {
  MetadataOptions options;
  options.leases = false;
  return options;
}

Harness::~Harness() { Crash(); }

void Harness::Start() {
  MetadataEnvironment environment{context.get_executor(), clock, random, store, osts, authority};
  auto started = Await(MetadataServer::Start(environment, options));
  ASSERT_TRUE(started.ok()) << started.status();
  server = *std::move(started);
}

void Harness::Crash() {
  server.reset();
  store.CrashProcess();
}

void Harness::StopAfterCommits(int count) {
  store.SetCommitHook([count, done = 0](const KvBatch&) mutable {
    return done++ < count ? OkStatus() : Status(absl::StatusCode::kUnavailable, "the machine has stopped");
  });
}

void Harness::RestartStopped() {
  Crash();
  store.SetCommitHook(nullptr);
  Start();
  RegisterOsts();
}

void Harness::LosePower() {
  struct Most : public Random {
    uint64_t Next() override { return ~uint64_t{0}; }
  } most;
  Crash();
  store.LosePower(most);
  options.boot += "+";
  Start();
}

void Harness::RegisterOsts() {
  for (int i = 0; i < ost_count; ++i) {
    Status status = Await(BeatHeart(static_cast<OstIndex>(i)));
    ASSERT_TRUE(status.ok()) << status;
  }
}

bool Harness::RunUntil(const std::function<bool()>& done, Duration limit) {
  const Duration end = clock.Now() + limit;
  while (true) {
    context.restart();
    context.poll();
    if (done()) return true;
    if (!clock.RunNext(end)) {
      context.restart();
      context.poll();
      return done();
    }
  }
}

void Harness::RunFor(Duration time) {
  RunUntil([] { return false; }, time);
}

}  // namespace nacre::mds
