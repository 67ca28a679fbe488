#include <cerrno>

#include "common/metrics.h"
#include "rpc/convert.h"
#include "server/object/ops/call_source.h"
#include "server/object/ops/ops.h"

namespace nacre::ost {
namespace {

// The most bytes of one commit, unless a single range is longer. With several members a commit is one
// message.
constexpr uint64_t kMostTogether = 4 << 20;
constexpr uint64_t kMostTogetherInChains = 512 << 10;
constexpr uint64_t kLongestInChains = (ChainBuffers::kMostBlocks - 1) * kBlockSize;

// Whether `next` can be committed together with `range`: further on in the same object, with whole blocks at
// the seam, and the bytes right behind in memory.
bool Joins(const proto::WriteRange& range, const proto::WriteRange& next) {
  const proto::ObjectRange& a = range.range();
  const proto::ObjectRange& b = next.range();
  const uint64_t end = a.offset() + a.length();
  return FromProto(a.object()) == FromProto(b.object()) && end > a.offset() && b.offset() >= end &&
         end % kBlockSize == 0 && b.offset() % kBlockSize == 0 &&
         b.memory_offset() == a.memory_offset() + a.length();
}

// The write that begins with ranges[begin], and where the next one begins.
WriteArgs MakeWrite(const google::protobuf::RepeatedPtrField<proto::WriteRange>& ranges, int begin,
                    uint64_t most_together, int* end) {
  WriteArgs args;
  args.object = FromProto(ranges[begin].range().object());
  args.parent = FromProto(ranges[begin].parent());
  *end = begin;
  uint64_t bytes = 0;
  do {
    const proto::WriteRange& range = ranges[(*end)++];
    args.ranges.push_back({range.range().offset(), range.range().length()});
    args.crc.insert(args.crc.end(), range.crc().begin(), range.crc().end());
    bytes += range.range().length();
  } while (*end < ranges.size() && bytes + ranges[*end].range().length() <= most_together &&
           Joins(ranges[*end - 1], ranges[*end]));
  return args;
}

}  // namespace

Task<Status> WriteOp(OpContext context) {
  static Counter& bytes = GetCounter("ost.write_bytes");
  const proto::WriteObjects& request = context.request->write();
  if (request.ranges_size() > kMaxRanges) {
    co_return ErrnoError(
        EINVAL, absl::StrCat(request.ranges_size(), " ranges: at most ", kMaxRanges, " in one request"));
  }
  const bool chained = context.target->chain != nullptr;
  uint64_t blocks = 0;
  for (const proto::WriteRange& range : request.ranges()) {
    CO_RETURN_IF_ERROR(CheckMemory(context, CallMemory::kGetSource, range.range()));
    if (chained && range.range().length() > kLongestInChains) {
      co_return ErrnoError(EMSGSIZE,
                           absl::StrCat("a range of ", range.range().length(), " bytes: of an OST with ",
                                        "several members at most ", kLongestInChains, " at once"));
    }
    blocks += ObjectStore::CountBlocks(range.range().offset(), range.range().length());
  }
  ObjectStore& store = *context.target->store;
  Allotment memory = co_await store.Admit(context.request->session(), blocks);
  GrantUse grant(&store.space(),
                 context.target->sessions->TakeGrant(context.request->session(), request.grant_used()));
  int64_t delta = 0;
  for (int at = 0, next = 0; at < request.ranges_size(); at = next) {
    CallSource source(context.call, request.ranges(at).range().memory_offset());
    const uint64_t most_together = chained ? kMostTogetherInChains : kMostTogether;
    WriteArgs args = MakeWrite(request.ranges(), at, most_together, &next);
    args.grant = &grant;
    args.by = context.by;
    args.ends_request = next == request.ranges_size();
    for (const ByteRange& range : args.ranges) bytes.Add(static_cast<int64_t>(range.length));
    StatusOr<int64_t> changed = co_await store.Write(std::move(args), &source, &memory);
    if (!changed.ok()) co_return changed.status();
    delta += *changed;
  }
  context.reply->mutable_write()->set_blocks_delta(delta * static_cast<int64_t>(kBlockSize / 512));
  if (!request.sync()) co_return OkStatus();
  proto::ObjectRequest sync;
  sync.set_ost(context.request->ost());
  sync.mutable_sync();
  context.request = &sync;
  co_return co_await SyncOp(context);
}

}  // namespace nacre::ost
