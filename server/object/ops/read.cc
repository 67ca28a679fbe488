#include <cerrno>

#include "common/metrics.h"
#include "rpc/convert.h"
#include "server/object/change_proto.h"
#include "server/object/ops/ops.h"

namespace nacre::ost {
namespace {

constexpr int kRangesAtOnce = 8;

// State that the ranges of a call share.
struct ReadCall {
  AsyncMutex turn;  // to put: the puts go one after the other
  Allotment memory;
};

// Puts bytes into the caller's memory. A call that has all the pages that it needs lends them, and the caller
// learns of it with the reply. One that needs its pages again waits until the caller has the bytes.
class CallSink : public DataSink {
 public:
  CallSink(IncomingCall* call, ReadCall* shared, uint64_t base) : call_(call), shared_(shared), base_(base) {}

  Task<Status> Deliver(uint64_t offset, std::span<const std::span<const std::byte>> buffers,
                       std::shared_ptr<void> keep) override {
    AsyncMutex::Guard guard = co_await shared_->turn.Lock();
    if (!shared_->memory.whole()) co_return co_await call_->Put(base_ + offset, buffers);
    co_return co_await call_->Lend(base_ + offset, buffers, std::move(keep));
  }

 private:
  IncomingCall* const call_;
  ReadCall* const shared_;
  const uint64_t base_;
};

// False: the connection is gone, and nobody waits for the rest.
Task<bool> ReadRange(OpContext context, ReadCall* shared, const proto::ObjectRange* range,
                     proto::ReadRangeResult* result) {
  static Counter& bytes = GetCounter("ost.read_bytes");
  CallSink sink(context.call, shared, range->memory_offset());
  ObjectStore& store = *context.target->store;
  const bool any_member = context.request->read().versions();
  const ObjectId object = FromProto(range->object());
  Task<RangeRead> reading =
      any_member ? store.ReadBesideChanges(object, range->offset(), range->length(), &sink, &shared->memory)
                 : store.Read(object, range->offset(), range->length(), &sink, &shared->memory);
  RangeRead read = co_await std::move(reading);
  if (!read.status.ok()) {
    *result->mutable_status() = ToProto(read.status);
    co_return !IsRetryable(read.status);
  }
  if (any_member) *result->mutable_version() = ToProto(read.version);
  bytes.Add(static_cast<int64_t>(read.length));
  result->set_length(read.length);
  result->mutable_crc()->Add(read.crc.begin(), read.crc.end());
  for (const HoleRange& hole : read.holes) {
    proto::Hole* out = result->add_holes();
    out->set_offset(hole.offset);
    out->set_length(hole.length);
  }
  co_return true;
}

}  // namespace

Status CheckMemory(const OpContext& context, CallMemory kind, const proto::ObjectRange& range) {
  if (range.length() == 0) return OkStatus();
  if (context.call->memory_kind() != kind) {
    return ErrnoError(EINVAL, "the call has no memory of the kind that this request needs");
  }
  uint64_t size = context.call->memory_size();
  if (range.memory_offset() <= size && range.length() <= size - range.memory_offset()) return OkStatus();
  return ErrnoError(EINVAL, absl::StrCat("range of ", range.length(), " bytes at ", range.memory_offset(),
                                         " of a memory of ", size, " bytes"));
}

Task<Status> ReadOp(OpContext context) {
  const auto& ranges = context.request->read().ranges();
  if (ranges.size() > kMaxRanges) {
    co_return ErrnoError(EINVAL,
                         absl::StrCat(ranges.size(), " ranges: at most ", kMaxRanges, " in one request"));
  }
  uint64_t blocks = 0;
  for (const proto::ObjectRange& range : ranges) {
    CO_RETURN_IF_ERROR(CheckMemory(context, CallMemory::kPutTarget, range));
    blocks += ObjectStore::CountBlocks(range.offset(), range.length());
  }
  auto* results = context.reply->mutable_read()->mutable_ranges();
  for (int i = 0; i < ranges.size(); ++i) results->Add();
  ReadCall shared;
  shared.memory = co_await context.target->store->Admit(context.request->session(), blocks);
  // A call that has too few pages waits for its caller while it holds locks, which the head may wait for.
  if (context.request->read().versions() && !shared.memory.whole())
    co_return ErrnoError(EAGAIN, "too much for a member that is not the head to read at once");
  bool connected = true;
  for (int at = 0; at < ranges.size() && connected; at += kRangesAtOnce) {
    int stop = std::min(ranges.size(), at + kRangesAtOnce);
    if (stop - at == 1) {
      connected = co_await ReadRange(context, &shared, &ranges[at], results->Mutable(at));
      continue;
    }
    std::vector<Task<bool>> reads;
    for (int i = at; i < stop; ++i)
      reads.push_back(ReadRange(context, &shared, &ranges[i], results->Mutable(i)));
    std::vector<bool> all = co_await WhenAll(std::move(reads));
    for (bool one : all) connected = connected && one;
  }
  if (!connected) co_return ErrnoError(ECONNRESET, "the caller has gone");
  co_return OkStatus();
}

}  // namespace nacre::ost
