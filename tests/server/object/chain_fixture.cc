#include "tests/server/object/chain_fixture.h"

#include <cerrno>

#include "server/object/object_table.h"

namespace nacre {
namespace {

std::string AddressOf(int i) { return absl::StrCat("inproc:oss", i); }

bool Names(const proto::ChainMember& member, const std::string& uuid) { return member.uuid() == uuid; }

}  // namespace

Task<StatusOr<proto::ReportChainReply>> Judge::ReportChain(proto::ReportChainRequest request) {
  reports.push_back(request);
  if (away) co_return ErrnoError(ECONNREFUSED, "nobody listens");
  proto::ReportChainReply reply;
  if (chain.members_size() == 0 || request.reporter() != chain.members(0).uuid()) {
    *reply.mutable_status() = ToProto(ErrnoError(ESTALE, "another member is the head"));
    co_return reply;
  }
  proto::Chain next;
  for (const proto::ChainMember& member : chain.members())
    if (!Names(member, request.lost())) *next.add_members() = member;
  for (const proto::ChainMember& member : chain.joining()) {
    if (Names(member, request.joined())) *next.add_members() = member;
    if (!Names(member, request.lost()) && !Names(member, request.joined())) *next.add_joining() = member;
  }
  const bool asks = request.lost().empty() && request.joined().empty();
  if (!asks && request.epoch() == chain.epoch()) {
    next.set_epoch(chain.epoch() + 1);
    chain = next;
    for (const proto::ChainMember& member : next.joining()) co_await tell(next, member.uuid());
    for (int i = next.members_size() - 1; i > 0; --i) {
      co_await tell(next, next.members(i).uuid());
      if (between.count() > 0) co_await RealClock().Sleep(between);
    }
    if (request.lost() == request.reporter()) co_await tell(next, next.members(0).uuid());
  }
  *reply.mutable_chain() = chain;
  reply.set_mdt_epoch(mdt_epoch);
  co_return reply;
}

ChainFixture::ChainFixture(uint64_t fill_bytes_per_second) : rate_(fill_bytes_per_second) {
  for (auto& transport : transports)
    transport = MakeInprocTransport(network, context.get_executor(), RealClock());
  judge->tell = [this](const proto::Chain& chain, std::string member) {
    return TellMember(chain, std::move(member));
  };
  for (int i = 0; i < kServers; ++i) {
    disk[i] = std::make_unique<MemBlockStore>(kBlocks);
    Start(i);
  }
}

ChainFixture::~ChainFixture() {
  for (auto& server : servers) server.reset();
  context.restart();
  context.poll();
}

void ChainFixture::Start(int i) {
  ObjectEnvironment environment{context.get_executor(), RealClock(), random, *transports[i], judge};
  ObjectOptions options;
  options.listen = options.advertise = AddressOf(i);
  options.pool_bytes = 8 << 20;
  options.heartbeat = 100ms;
  options.boot = absl::StrCat("boot", boots_[i]);
  options.fill_bytes_per_second = rate_;
  options.scrub_every = scrub_every;
  options.scrub_bytes_per_second = 0;
  std::vector<OstDevices> osts{{0, &kv[i], disk[i].get(), absl::StrCat("memory", i), /*copies=*/3}};
  judge->registered.erase(AddressOf(i));
  auto started = Run(ObjectServer::Start(environment, osts, options));
  ASSERT_TRUE(started.ok()) << started.status();
  servers[i] = *std::move(started);
  ASSERT_TRUE(RunUntil([&] { return judge->registered.contains(AddressOf(i)); }));
}

void ChainFixture::Restart(std::vector<int> members) {
  for (int i : members) Crash(i);
  for (int i : members) Start(i);
  judge->heard.clear();
  SetChain(std::move(members));
}

void ChainFixture::Spoil(int member, const ObjectId& id, uint64_t block) {
  ost::Chunk chunk;
  ASSERT_TRUE(ost::LoadChunk(&kv[member], id, block / ost::kChunkBlocks, &chunk).ok());
  const auto i = static_cast<uint32_t>(block % ost::kChunkBlocks);
  ASSERT_TRUE(chunk.is_written(i));
  disk[member]->FlipBit(chunk.physical[i], 100);
}

void ChainFixture::LosePower(int i) {
  Crash(i);
  ++boots_[i];
  kv[i].LosePower(random);
  disk[i]->LosePower(random);
}

proto::ChainMember ChainFixture::Member(int i) const {
  const proto::RegisterOssRequest& registered = judge->registered.at(AddressOf(i));
  proto::ChainMember member;
  member.set_uuid(registered.osts(0).uuid());
  member.set_address(AddressOf(i));
  member.set_instance(registered.instance());
  return member;
}

Task<void> ChainFixture::TellMember(proto::Chain chain, std::string member) {
  for (int i = 0; i < kServers; ++i) {
    if (servers[i] == nullptr || Member(i).uuid() != member) continue;
    proto::ObjectRequest request;
    *request.mutable_set_chain()->mutable_chain() = chain;
    request.mutable_set_chain()->set_member(member);
    std::unique_ptr<ObjectStub> mds = Client(i, 0);
    std::vector<MemorySpan> none;
    auto told = co_await mds->Call(std::move(request), CallMemory::kNone, std::move(none));
    EXPECT_TRUE(told.ok() || ToErrno(told.status()) == ESTALE) << told.status();
  }
}

void ChainFixture::SetChain(std::vector<int> members, std::vector<int> joining, bool head_hears) {
  proto::Chain chain;
  chain.set_epoch(judge->chain.epoch() + 1);
  for (int i : members) *chain.add_members() = Member(i);
  for (int i : joining) *chain.add_joining() = Member(i);
  judge->chain = chain;
  std::vector<std::string> order;
  for (const auto& member : chain.joining()) order.push_back(member.uuid());
  for (int i = chain.members_size() - 1; i >= (head_hears ? 0 : 1); --i)
    order.push_back(chain.members(i).uuid());
  for (const std::string& uuid : order) {
    Run([](ChainFixture* f, proto::Chain chain, std::string uuid) -> Task<Unit> {
      co_await f->TellMember(std::move(chain), std::move(uuid));
      co_return Unit{};
    }(this, chain, uuid));
  }
}

bool ChainFixture::RunUntil(const std::function<bool()>& done, Duration limit) {
  return nacre::RunUntil(context, done, limit);
}

std::unique_ptr<ObjectStub> ChainFixture::Client(int server, SessionId session) {
  RetryPolicy policy;
  policy.hard = false;
  policy.soft_timeout = 10s;
  policy.pause = 1ms;
  auto stub = std::make_unique<ObjectStub>(*transports[kServers]->Connect(AddressOf(server)), RealClock(),
                                           session, sequence, policy);
  sequence += 10000;  // no two stubs use the same numbers
  return stub;
}

void ChainFixture::StartWrite(ObjectStub* stub, ObjectId id, uint64_t offset, std::string data,
                              std::optional<Status>* status) {
  auto write = [](ChainFixture* f, ObjectStub* stub, ObjectId id, uint64_t offset,
                  std::string data) -> Task<Status> {
    proto::ObjectRequest request = ServerFixture::WriteRequest(0, id, offset, data);
    ClientMemory sent(f->transports[kServers].get(), data.size());
    std::copy(data.begin(), data.end(), sent.bytes.begin());
    std::vector<MemorySpan> spans = sent.Spans();
    auto reply = co_await stub->Call(std::move(request), CallMemory::kGetSource, std::move(spans));
    co_return reply.status();
  };
  Spawn(context.get_executor(), write(this, stub, id, offset, std::move(data)),
        [status](Status result) { *status = std::move(result); });
}

Status ChainFixture::Write(ObjectStub* stub, ObjectId id, uint64_t offset, std::string data) {
  auto status = std::make_unique<std::optional<Status>>();
  StartWrite(stub, id, offset, std::move(data), status.get());
  EXPECT_TRUE(RunUntil([&] { return status->has_value(); })) << "no answer";
  return **status;
}

Status ChainFixture::Change(ObjectStub* stub, proto::ObjectRequest request) {
  request.set_ost(0);
  return Run(stub->Call(std::move(request), CallMemory::kNone, {})).status();
}

StatusOr<std::string> ChainFixture::Read(ObjectStub* stub, ObjectId id, uint64_t length) {
  ClientMemory memory(transports[kServers].get(), length);
  proto::ObjectRequest request;
  ServerFixture::AddRange(request.mutable_read()->add_ranges(), id, 0, length, 0);
  auto reply = Run(stub->Call(std::move(request), CallMemory::kPutTarget, memory.Spans()));
  if (!reply.ok()) return reply.status();
  const proto::ReadRangeResult& result = reply->read().ranges(0);
  RETURN_IF_ERROR(FromProto(result.status()));
  return memory.bytes.substr(0, result.length());  // holes are the zeros that were there
}

std::map<std::string, std::string> ChainFixture::Contents(int i) {
  SetChain({i});
  std::unique_ptr<ObjectStub> mds = Client(i, 0);
  std::map<std::string, std::string> contents;
  proto::ObjectRequest request;
  request.mutable_list()->set_limit(8192);
  auto listed = Run(mds->Call(std::move(request), CallMemory::kNone, {}));
  EXPECT_TRUE(listed.ok()) << listed.status();
  if (!listed.ok()) return contents;
  for (const proto::ListedObject& object : listed->list().objects()) {
    const ObjectId id = FromProto(object.object());
    auto bytes = Read(mds.get(), id, std::max<uint64_t>(object.size(), 1));
    EXPECT_TRUE(bytes.ok()) << bytes.status();
    if (!bytes.ok()) continue;
    const uint32_t crc = Crc32c({reinterpret_cast<const std::byte*>(bytes->data()), bytes->size()});
    contents[id.ToString()] = absl::StrFormat("version %d.%d, %d bytes %08x", object.version().epoch(),
                                              object.version().changes(), object.size(), crc);
  }
  return contents;
}

}  // namespace nacre
