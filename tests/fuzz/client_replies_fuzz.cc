// A hostile MDS and hostile OSSes around a client: whatever they answer or push, each operation of the client
// comes to an end, with an error or not, and nothing breaks. An OSS puts bytes within the memory that it was
// given alone: the transport sees to that.
#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "client/filesystem.h"
#include "rpc/convert.h"
#include "tests/fuzz/message_filler.h"
#include "tests/fuzz/simulated.h"
#include "transport/memory.h"

namespace nacre::fuzz {
namespace {

using client::Caller;
using client::HandlePtr;

constexpr int kMaxOperations = 30;
constexpr Duration kSoftTimeout = 2s;

// The results that answer a request of this kind; 0: any will do.
int ResultOf(const proto::MetadataRequest& request) {
  switch (request.op_case()) {
    case proto::MetadataRequest::kConnect:
      return proto::MetadataReply::kConnectFieldNumber;
    case proto::MetadataRequest::kLookup:
    case proto::MetadataRequest::kMknod:
    case proto::MetadataRequest::kCreate:
    case proto::MetadataRequest::kLink:
    case proto::MetadataRequest::kOpen:
    case proto::MetadataRequest::kRename:
      return proto::MetadataReply::kEntryFieldNumber;
    case proto::MetadataRequest::kGetattr:
    case proto::MetadataRequest::kSetattr:
    case proto::MetadataRequest::kUpdateSize:
    case proto::MetadataRequest::kWriteInline:
    case proto::MetadataRequest::kUnlink:
      return proto::MetadataReply::kAttrFieldNumber;
    case proto::MetadataRequest::kReaddir:
      return proto::MetadataReply::kReaddirFieldNumber;
    case proto::MetadataRequest::kMoveOut:
      return proto::MetadataReply::kMovedOutFieldNumber;
    case proto::MetadataRequest::kAppend:
      return proto::MetadataReply::kAppendFieldNumber;
    case proto::MetadataRequest::kGetLayout:
    case proto::MetadataRequest::kSetLayout:
      return proto::MetadataReply::kLayoutFieldNumber;
    case proto::MetadataRequest::kReclaim:
      return proto::MetadataReply::kReclaimFieldNumber;
    default:
      return 0;
  }
}

void FillStatus(FuzzedDataProvider& input, proto::StatusProto* status) {
  static constexpr int kErrors[] = {EIO, ENOENT, ESTALE, EEXIST, EFBIG, EAGAIN, ENOSPC, EPROTO, 4711};
  if (input.ConsumeIntegralInRange<int>(0, 7) < 6) return;
  status->set_error(static_cast<uint32_t>(input.PickValueInArray(kErrors)));
  status->set_message("hostile");
}

proto::MetadataReply Reply(FuzzedDataProvider& input, const proto::MetadataRequest& request) {
  proto::MetadataReply reply;
  const int result = ResultOf(request);
  if (result == 0 || input.ConsumeIntegralInRange<int>(0, 9) == 9) {
    FillMessage(input, &reply);
  } else {
    const auto* field = proto::MetadataReply::descriptor()->FindFieldByNumber(result);
    FillMessage(input, reply.GetReflection()->MutableMessage(&reply, field));
  }
  reply.clear_status();
  FillStatus(input, reply.mutable_status());
  if (request.has_connect() && input.ConsumeIntegralInRange<int>(0, 3) < 3) {
    reply.mutable_connect()->set_session(1);
    reply.mutable_connect()->set_lease_ms(30'000);
    reply.clear_status();
  }
  if (reply.has_connect()) {
    proto::ClusterMap* map = reply.mutable_connect()->mutable_map();
    for (uint32_t ost = 0; ost < 2; ++ost) {
      proto::OstState* state = map->add_osts();
      state->mutable_info()->set_index(ost);
      state->set_address("fuzz");
      state->set_up(true);
    }
  }
  return reply;
}

struct HostileStream {
  FuzzedDataProvider& input;
  MetadataChannelEvents events;
  bool lost = false;

  void MaybePush() {
    if (lost || input.ConsumeIntegralInRange<int>(0, 15) != 15) return;
    proto::Push push;
    FillMessage(input, &push);
    events.on_push(std::move(push));
  }
  bool MaybeLose() {
    if (lost || input.ConsumeIntegralInRange<int>(0, 31) != 31) return lost;
    lost = true;
    events.on_lost(absl::UnavailableError("hostile"));
    return true;
  }
};

class HostileChannel : public MetadataChannel {
 public:
  explicit HostileChannel(std::shared_ptr<HostileStream> stream) : stream_(std::move(stream)) {}
  ~HostileChannel() override { Close(); }

  Task<StatusOr<proto::MetadataReply>> Call(proto::MetadataRequest request) override {
    std::shared_ptr<HostileStream> stream = stream_;
    co_await Yield();
    stream->MaybePush();
    if (stream->MaybeLose()) co_return absl::UnavailableError("hostile");
    co_return Reply(stream->input, request);
  }
  void Close() override { stream_->lost = true; }

 private:
  const std::shared_ptr<HostileStream> stream_;
};

class HostileConnector : public MetadataConnector {
 public:
  explicit HostileConnector(FuzzedDataProvider& input) : input_(input) {}

  Task<StatusOr<std::shared_ptr<MetadataChannel>>> Connect(MetadataChannelEvents events, Duration) override {
    auto stream = std::make_shared<HostileStream>(HostileStream{input_, std::move(events)});
    co_return std::make_shared<HostileChannel>(std::move(stream));
  }
  std::string address() const override { return "fuzz"; }

 private:
  FuzzedDataProvider& input_;
};

class HostilePeer : public Peer {
 public:
  explicit HostilePeer(FuzzedDataProvider& input) : input_(input) {}

  Task<StatusOr<std::string>> Call(CallRequest call, Duration) override {
    FuzzedDataProvider& input = input_;
    co_await Yield();
    for (const MemorySpan& span : call.memory) {
      if (call.kind == CallMemory::kPutTarget)
        std::memset(span.data(), input.ConsumeBool() ? 1 : 0, span.length);
    }
    if (input.ConsumeIntegralInRange<int>(0, 15) == 15) co_return input.ConsumeRandomLengthString(100);
    proto::ObjectReply reply;
    FillMessage(input, &reply);
    reply.clear_status();
    FillStatus(input, reply.mutable_status());
    co_return reply.SerializeAsString();
  }
  PathInfo path() const override { return {"fuzz", ""}; }
  std::string address() const override { return "fuzz"; }
  void Close() override {}

 private:
  FuzzedDataProvider& input_;
};

class HostileTransport : public Transport {
 public:
  explicit HostileTransport(FuzzedDataProvider& input) : input_(input) {}

  StatusOr<std::shared_ptr<MemoryRegion>> Register(std::byte* data, size_t size) override {
    return RegisterHostMemory(data, size);
  }
  StatusOr<std::shared_ptr<Peer>> Connect(const std::string&) override {
    return std::make_shared<HostilePeer>(input_);
  }
  StatusOr<std::unique_ptr<Listener>> Listen(const std::string& address, CallHandler) override {
    return absl::UnimplementedError(address);
  }

 private:
  FuzzedDataProvider& input_;
};

class FuzzedClient : Simulated {
 public:
  explicit FuzzedClient(FuzzedDataProvider& input) : input_(input) {}

  bool Mount() {
    process_ = world.Start(0, "client");
    auto transport = std::make_shared<HostileTransport>(input_);
    process_->Own(transport);
    client::Environment environment{process_->executor(), world.clock(), process_->random(), *transport,
                                    std::make_shared<HostileConnector>(input_)};
    client::Options options;
    options.cache_bytes = 4 << 20;
    options.dirty_bytes = 1 << 20;
    options.retry.hard = false;
    options.retry.soft_timeout = kSoftTimeout;
    auto mounted = Ended(client::FileSystem::Mount(environment, options));
    if (!mounted.ok()) return false;
    fs_ = mounted->get();
    process_->Own(std::shared_ptr<client::FileSystem>(*std::move(mounted)));
    return true;
  }

  void Operate() {
    switch (input_.ConsumeIntegralInRange<int>(0, 3)) {
      case 0:
        return Names();
      case 1:
        return Attributes();
      default:
        return Data();
    }
  }

  void Unmount() {
    handles_.clear();
    (void)Ended(fs_->Unmount());
  }

 private:
  template <typename T>
  T Ended(Task<T> task) {
    std::optional<T> result = Await(process_, std::move(task), 10min);
    if (!result.has_value()) std::abort();
    return *std::move(result);
  }

  Fid Directory() { return input_.ConsumeIntegralInRange<int>(0, 3) < 3 ? kRootFid : File(); }
  Fid File() { return {1, input_.ConsumeIntegralInRange<uint32_t>(1, 4), 0}; }
  HandlePtr Handle() {
    return handles_.empty() ? nullptr
                            : handles_[input_.ConsumeIntegralInRange<size_t>(0, handles_.size() - 1)];
  }
  void Keep(StatusOr<HandlePtr> handle) {
    if (handle.ok()) handles_.push_back(*std::move(handle));
  }

  void Names() {
    Duration negative{};
    switch (input_.ConsumeIntegralInRange<int>(0, 8)) {
      case 0:
        return (void)Ended(fs_->Lookup(caller_, Directory(), FillBytes(input_), &negative));
      case 1:
        return (void)Ended(fs_->Mknod(caller_, Directory(), "d", S_IFDIR | 0755, 0));
      case 2:
        return (void)Ended(fs_->Symlink(caller_, Directory(), "s", "target"));
      case 3:
        return (void)Ended(fs_->Unlink(caller_, Directory(), "a"));
      case 4:
        return (void)Ended(fs_->Rmdir(caller_, Directory(), "d"));
      case 5:
        return (void)Ended(fs_->Rename(caller_, Directory(), "a", File(), "b", 0));
      case 6:
        return (void)Ended(fs_->Link(caller_, File(), Directory(), "l"));
      case 7:
        return (void)Ended(fs_->Readlink(caller_, File()));
      default:
        return List();
    }
  }

  void List() {
    auto directory = Ended(fs_->Opendir(caller_, Directory()));
    if (!directory.ok()) return;
    const uint64_t cookie = FillNumber(input_);
    (void)Ended(fs_->Readdir(caller_, *directory, 0, 100, true));
    (void)Ended(fs_->Readdir(caller_, *directory, cookie, 100, false));
    (void)Ended(fs_->Release(*directory));
  }

  void Attributes() {
    client::SetAttributes set;
    switch (input_.ConsumeIntegralInRange<int>(0, 7)) {
      case 0:
        return (void)Ended(fs_->Getattr(caller_, File(), nullptr));
      case 1:
        set.mode = 0600;
        return (void)Ended(fs_->Setattr(caller_, File(), set, nullptr));
      case 2:
        set.size = FillNumber(input_) & ~(uint64_t{1} << 63);
        return (void)Ended(fs_->Setattr(caller_, File(), set, Handle()));
      case 3:
        return (void)Ended(fs_->GetXattr(caller_, File(), input_.ConsumeBool() ? "nacre.stripes" : "user.x"));
      case 4:
        return (void)Ended(fs_->SetXattr(caller_, File(), "nacre.layout", "-c 1", 0));
      case 5:
        return (void)Ended(fs_->ListXattr(caller_, File()));
      case 6:
        return (void)Ended(fs_->Statfs(caller_));
      default:
        return (void)Ended(fs_->RemoveXattr(caller_, File(), "user.x"));
    }
  }

  void Data() {
    HandlePtr handle = Handle();
    const int pick = input_.ConsumeIntegralInRange<int>(0, 9);
    if (pick == 0 || handle == nullptr) return OpenOne();
    const uint64_t offset = input_.ConsumeIntegralInRange<uint64_t>(0, 1 << 20);
    switch (pick) {
      case 1:
      case 2:
        return Write(handle, offset);
      case 3:
      case 4:
        return (void)Ended(fs_->Read(handle, offset, input_.ConsumeIntegralInRange<size_t>(0, 1 << 20)));
      case 5:
        return (void)Ended(fs_->Fsync(handle, false));
      case 6:
        return (void)Ended(
            fs_->Fallocate(handle, FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE, offset, 10'000));
      case 7:
        return (void)Ended(fs_->Seek(handle, offset, input_.ConsumeBool() ? SEEK_DATA : SEEK_HOLE));
      case 8:
        return (void)Ended(fs_->Flush(handle, 0));
      default:
        (void)Ended(fs_->Release(handle));
        std::erase(handles_, handle);
    }
  }

  void OpenOne() {
    static constexpr int kFlags[] = {O_RDONLY, O_RDWR, O_WRONLY | O_APPEND, O_RDWR | O_TRUNC,
                                     O_RDWR | O_SYNC};
    const int flags = input_.PickValueInArray(kFlags);
    if (input_.ConsumeBool()) return Keep(Ended(fs_->Open(caller_, File(), flags)));
    auto created = Ended(fs_->Create(caller_, Directory(), "f", S_IFREG | 0644, flags | O_CREAT));
    if (created.ok()) handles_.push_back(created->handle);
  }

  void Write(HandlePtr handle, uint64_t offset) {
    const std::vector<std::byte> bytes(input_.ConsumeIntegralInRange<size_t>(0, 200'000));
    const std::span<const std::byte> piece = bytes;
    (void)Ended(fs_->Write(std::move(handle), offset, std::span(&piece, 1)));
  }

  FuzzedDataProvider& input_;
  sim::Process* process_ = nullptr;
  client::FileSystem* fs_ = nullptr;
  std::vector<HandlePtr> handles_;
  const Caller caller_;
};

}  // namespace
}  // namespace nacre::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzedDataProvider input(data, size);
  nacre::fuzz::FuzzedClient client(input);
  if (!client.Mount()) return 0;
  for (int i = 0; i < nacre::fuzz::kMaxOperations && input.remaining_bytes() > 0; ++i) client.Operate();
  client.Unmount();
  return 0;
}
