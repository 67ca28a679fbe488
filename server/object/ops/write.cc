#include <cerrno>

#include "common/metrics.h"
#include "rpc/convert.h"
#include "server/object/ops/ops.h"

namespace nacre::ost {
namespace {

constexpr int kMaxRanges = 4096;

class CallSource : public DataSource {
 public:
  CallSource(IncomingCall* call, uint64_t base) : call_(call), base_(base) {}

  Task<Status> Fetch(uint64_t offset, std::span<const std::span<std::byte>> buffers) override {
    co_return co_await call_->Get(base_ + offset, buffers);
  }

 private:
  IncomingCall* const call_;
  const uint64_t base_;
};

}  // namespace

Task<Status> WriteOp(OpContext context) {
  static Counter& bytes = GetCounter("ost.write_bytes");
  const proto::WriteObjects& request = context.request->write();
  if (request.ranges_size() > kMaxRanges) {
    co_return ErrnoError(
        EINVAL, absl::StrCat(request.ranges_size(), " ranges: at most ", kMaxRanges, " in one request"));
  }
  for (const proto::WriteRange& range : request.ranges()) {
    CO_RETURN_IF_ERROR(CheckMemory(context, CallMemory::kGetSource, range.range()));
  }
  ObjectStore& store = *context.target->store;
  GrantUse grant(&store.space(),
                 context.target->sessions->TakeGrant(context.request->session(), request.grant_used()));
  int64_t delta = 0;
  for (const proto::WriteRange& range : request.ranges()) {
    CallSource source(context.call, range.range().memory_offset());
    WriteArgs args;
    args.object = FromProto(range.range().object());
    args.offset = range.range().offset();
    args.length = range.range().length();
    args.parent = FromProto(range.parent());
    args.crc.assign(range.crc().begin(), range.crc().end());
    args.grant = &grant;
    StatusOr<int64_t> changed = co_await store.Write(std::move(args), &source);
    if (!changed.ok()) co_return changed.status();
    delta += *changed;
    bytes.Add(static_cast<int64_t>(range.range().length()));
  }
  context.reply->mutable_write()->set_blocks_delta(delta * static_cast<int64_t>(kBlockSize / 512));
  if (!request.sync()) co_return OkStatus();
  co_return co_await store.Sync();
}

}  // namespace nacre::ost
