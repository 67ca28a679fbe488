#include "tests/client/harness.h"

namespace nacre::client {
namespace {

// Passes everything on, counts, and lets the test have its way with the replies.
class CountingChannel : public MetadataChannel {
 public:
  CountingChannel(std::shared_ptr<MetadataChannel> next, Mounted* mounted)
      : next_(std::move(next)), mounted_(mounted) {}

  Task<StatusOr<proto::MetadataReply>> Call(proto::MetadataRequest request) override {
    const auto* field = request.GetDescriptor()->FindFieldByNumber(request.op_case());
    ++mounted_->requests[field->name()];
    if (mounted_->before_request == nullptr && mounted_->before_reply == nullptr)
      return next_->Call(std::move(request));
    return CallAndWait(next_, mounted_, std::move(request));
  }
  void Close() override { next_->Close(); }

 private:
  static Task<StatusOr<proto::MetadataReply>> CallAndWait(std::shared_ptr<MetadataChannel> next,
                                                          Mounted* mounted, proto::MetadataRequest request) {
    if (mounted->before_request != nullptr) co_await mounted->before_request(request);
    auto reply = co_await next->Call(request);
    if (mounted->before_reply == nullptr) co_return reply;
    Status fault = co_await mounted->before_reply(request);
    if (!fault.ok()) co_return fault;
    co_return reply;
  }

  std::shared_ptr<MetadataChannel> next_;
  Mounted* mounted_;
};

class CountingConnector : public MetadataConnector {
 public:
  CountingConnector(std::shared_ptr<MetadataConnector> next, Mounted* mounted)
      : next_(std::move(next)), mounted_(mounted) {}

  Task<StatusOr<std::shared_ptr<MetadataChannel>>> Connect(MetadataChannelEvents events,
                                                           Duration timeout) override {
    CO_ASSIGN_OR_RETURN(auto channel, co_await next_->Connect(std::move(events), timeout));
    co_return std::make_shared<CountingChannel>(std::move(channel), mounted_);
  }
  std::string address() const override { return next_->address(); }

 private:
  std::shared_ptr<MetadataConnector> next_;
  Mounted* mounted_;
};

sim::ClusterOptions ClusterFor(const HarnessOptions& options) {
  sim::ClusterOptions cluster;
  cluster.osses = options.osses;
  cluster.osts_per_oss = options.osts_per_oss;
  cluster.ost_blocks = options.ost_blocks;
  cluster.clients = 0;
  cluster.metadata = options.metadata;
  return cluster;
}

}  // namespace

std::string Pattern(uint64_t seed, size_t size) {
  SeededRandom random(seed);
  std::string bytes(size, '\0');
  for (size_t i = 0; i < size; i += 8) {
    uint64_t word = random.Next();
    std::memcpy(bytes.data() + i, &word, std::min<size_t>(8, size - i));
  }
  return bytes;
}

// --- the cluster ---

Harness::Harness(HarnessOptions harness_options)
    : options(std::move(harness_options)),
      world(options.seed),
      network(world),
      cluster(world, network, ClusterFor(options)) {
  network.faults().slow_one_in = 0;
  for (int node = 0; node < cluster.nodes(); ++node) cluster.Boot(node);
  EXPECT_TRUE(RunUntil([&] { return cluster.AllReady(); })) << "the servers do not start";
  world.RunFor(3s);  // the OSSes register
}

Harness::~Harness() { world.KillAll(); }

std::unique_ptr<Mounted> Harness::Mount() { return Mount(options.client); }

std::unique_ptr<Mounted> Harness::Mount(Options client_options) {
  return std::make_unique<Mounted>(*this, next_node_++, std::move(client_options));
}

Mounted::Mounted(Harness& harness, int node, Options options) : harness_(harness) {
  process_ = harness.world.Start(node, absl::StrFormat("client%d", node));
  std::shared_ptr<Transport> transport = sim::NewTransport(harness.network, process_);
  process_->Own(transport);
  Environment environment{process_->executor(), harness.world.clock(), process_->random(), *transport,
                          std::make_shared<CountingConnector>(
                              sim::NewMetadataConnector(harness.network, process_, "sim:mds"), this)};
  options.name = process_->name();
  auto mounted = Await(FileSystem::Mount(environment, options));
  EXPECT_TRUE(mounted.ok()) << mounted.status();
  fs_ = mounted->get();
  process_->Own(std::shared_ptr<FileSystem>(*std::move(mounted)));
  harness.world.RunFor(10ms);  // a lease that came along is taken
}

int Mounted::total() const {
  int sum = 0;
  for (const auto& [kind, count] : requests) sum += kind == "keep_alive" ? 0 : count;
  return sum;
}

Task<void> Mounted::LoseStream() {
  const int before = requests["reclaim"];
  harness_.network.Break(process_->node(), harness_.cluster.mds());
  while (requests["reclaim"] == before) co_await harness_.world.clock().Sleep(100ms);
  co_await harness_.world.clock().Sleep(100ms);
}

Status Mounted::Unmount() { return Await(fs_->Unmount()); }

void Mounted::Kill() { harness_.world.Kill(process_); }

// --- short forms ---

Fid Mounted::Mkdir(const std::string& name, Fid parent) {
  auto made = Await(fs_->Mknod(caller, parent, name, S_IFDIR | 0755, 0));
  EXPECT_TRUE(made.ok()) << made.status();
  return made.ok() ? FromProto(made->attr.fid()) : Fid{};
}

HandlePtr Mounted::Create(const std::string& name, int flags, Fid parent) {
  auto created = Await(fs_->Create(caller, parent, name, S_IFREG | 0644, flags | O_CREAT));
  EXPECT_TRUE(created.ok()) << created.status();
  return created.ok() ? created->handle : nullptr;
}

HandlePtr Mounted::Open(Fid fid, int flags) {
  auto handle = Await(fs_->Open(caller, fid, flags));
  EXPECT_TRUE(handle.ok()) << handle.status();
  return handle.ok() ? *handle : nullptr;
}

uint64_t Mounted::Behind() {
  const Seen seen = fs_->Look();
  return seen.early_answered > seen.early_done ? seen.early_answered - seen.early_done : 0;
}

HandlePtr Mounted::OpenName(const std::string& name, int flags, Fid parent) {
  auto found = Lookup(name, parent);
  EXPECT_TRUE(found.ok()) << found.status();
  return found.ok() ? Open(FromProto(found->attr.fid()), flags) : nullptr;
}

StatusOr<Known> Mounted::Lookup(const std::string& name, Fid parent) {
  Duration negative{};
  return Await(fs_->Lookup(caller, parent, name, &negative));
}

proto::Attr Mounted::Stat(Fid fid) {
  auto known = Await(fs_->Getattr(caller, fid, nullptr));
  EXPECT_TRUE(known.ok()) << known.status();
  return known.ok() ? known->attr : proto::Attr{};
}

StatusOr<size_t> Mounted::TryWrite(const HandlePtr& handle, uint64_t offset, std::string_view data) {
  std::span<const std::byte> piece = std::as_bytes(std::span(data.data(), data.size()));
  return Await(fs_->Write(handle, offset, std::span(&piece, 1)));
}

void Mounted::Write(const HandlePtr& handle, uint64_t offset, std::string_view data) {
  auto written = TryWrite(handle, offset, data);
  ASSERT_TRUE(written.ok()) << written.status();
  ASSERT_EQ(*written, data.size());
}

std::string Mounted::Read(const HandlePtr& handle, uint64_t offset, size_t size) {
  auto result = Await(fs_->Read(handle, offset, size));
  EXPECT_TRUE(result.ok()) << result.status();
  if (!result.ok()) return "(error)";
  std::string bytes;
  for (std::span<const std::byte> piece : result->pieces) {
    bytes.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  }
  EXPECT_EQ(bytes.size(), result->size);
  return bytes;
}

void Mounted::Truncate(const HandlePtr& handle, uint64_t size) {
  SetAttributes set;
  set.size = size;
  Fid fid;
  auto done = Await(fs_->Setattr(caller, fid, set, handle));
  ASSERT_TRUE(done.ok()) << done.status();
  ASSERT_EQ(done->attr.size(), size);
}

Status Mounted::Fsync(const HandlePtr& handle) { return Await(fs_->Fsync(handle, false)); }

Status Mounted::Close(const HandlePtr& handle) {
  Status flushed = Await(fs_->Flush(handle, 0));
  Status released = Await(fs_->Release(handle));
  return flushed.ok() ? released : flushed;
}

Duration Mounted::Left(Duration until) {
  return until == Duration(0) ? until : std::max(Duration(0), until - harness_.world.clock().Now());
}

std::vector<std::string> Mounted::List(Fid fid) {
  std::vector<std::string> names;
  auto handle = Await(fs_->Opendir(caller, fid));
  EXPECT_TRUE(handle.ok()) << handle.status();
  if (!handle.ok()) return names;
  for (uint64_t cookie = 0;;) {
    auto entries = Await(fs_->Readdir(caller, *handle, cookie, 100, false));
    EXPECT_TRUE(entries.ok()) << entries.status();
    if (!entries.ok() || entries->empty()) break;
    for (const DirEntry& entry : *entries) names.push_back(entry.name);
    cookie = entries->back().cookie;
  }
  EXPECT_TRUE(Await(fs_->Release(*handle)).ok());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace nacre::client
