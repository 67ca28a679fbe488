#include <cerrno>

#include "common/metrics.h"
#include "rpc/convert.h"
#include "server/object/change_proto.h"
#include "server/object/ops/ops.h"

namespace nacre::ost {
namespace {

constexpr size_t kPiecesAtOnce = 8;

// State that the pieces of a call share.
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
bool TellResult(const RangeRead& read, proto::ReadRangeResult* result) {
  static Counter& bytes = GetCounter("ost.read_bytes");
  if (!read.status.ok()) {
    *result->mutable_status() = ToProto(read.status);
    return !IsRetryable(read.status);
  }
  bytes.Add(static_cast<int64_t>(read.length));
  result->set_length(read.length);
  result->mutable_crc()->Add(read.crc.begin(), read.crc.end());
  for (const HoleRange& hole : read.holes) {
    proto::Hole* out = result->add_holes();
    out->set_offset(hole.offset);
    out->set_length(hole.length);
  }
  return true;
}

// Ranges of a call, [begin, end), that are read in one go.
struct Piece {
  int begin = 0, end = 0;
};

std::vector<Piece> CutPieces(const google::protobuf::RepeatedPtrField<proto::ObjectRange>& ranges,
                             bool any_member) {
  std::vector<Piece> pieces;
  uint64_t blocks = 0;  // of the last one
  for (int i = 0; i < ranges.size(); ++i) {
    const uint64_t more = ObjectStore::CountBlocks(ranges[i].offset(), ranges[i].length());
    blocks += more;
    if (pieces.empty() || any_member || blocks > kPieceBlocks) {
      pieces.push_back({i, i});
      blocks = more;
    }
    pieces.back().end = i + 1;
  }
  return pieces;
}

// As TellResult.
Task<bool> ReadPiece(OpContext context, ReadCall* shared, Piece piece, proto::ReadObjectsReply* reply) {
  CallSink sink(context.call, shared, 0);
  absl::InlinedVector<RangeToRead, 1> reads;
  for (int i = piece.begin; i < piece.end; ++i) {
    const proto::ObjectRange& range = context.request->read().ranges(i);
    reads.push_back({FromProto(range.object()), range.offset(), range.length(), range.memory_offset()});
  }
  co_await context.target->store->ReadTogether(std::span(reads.data(), reads.size()), &sink, &shared->memory);
  bool connected = true;
  for (int i = piece.begin; i < piece.end; ++i) {
    const RangeRead& read = reads[static_cast<size_t>(i - piece.begin)].result;
    connected = TellResult(read, reply->mutable_ranges(i)) && connected;
  }
  co_return connected;
}

Task<bool> ReadAtAnyMember(OpContext context, ReadCall* shared, int index, proto::ReadObjectsReply* reply) {
  const proto::ObjectRange& range = context.request->read().ranges(index);
  CallSink sink(context.call, shared, range.memory_offset());
  const RangeRead read = co_await context.target->store->ReadBesideChanges(
      FromProto(range.object()), range.offset(), range.length(), &sink, &shared->memory);
  if (read.status.ok()) *reply->mutable_ranges(index)->mutable_version() = ToProto(read.version);
  co_return TellResult(read, reply->mutable_ranges(index));
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
  const bool any_member = context.request->read().versions();
  proto::ReadObjectsReply* reply = context.reply->mutable_read();
  for (int i = 0; i < ranges.size(); ++i) reply->add_ranges();
  ReadCall shared;
  shared.memory = co_await context.target->store->Admit(context.request->session(), blocks);
  // A call that has too few pages waits for its caller while it holds locks, which the head may wait for.
  if (any_member && !shared.memory.whole())
    co_return ErrnoError(EAGAIN, "too much for a member that is not the head to read at once");
  const auto read = [&](Piece piece) {
    return any_member ? ReadAtAnyMember(context, &shared, piece.begin, reply)
                      : ReadPiece(context, &shared, piece, reply);
  };
  const std::vector<Piece> pieces = CutPieces(ranges, any_member);
  bool connected = true;
  for (size_t at = 0; at < pieces.size() && connected; at += kPiecesAtOnce) {
    const size_t stop = std::min(pieces.size(), at + kPiecesAtOnce);
    if (stop - at == 1) {
      connected = co_await read(pieces[at]);
      continue;
    }
    std::vector<Task<bool>> reads;
    for (size_t i = at; i < stop; ++i) reads.push_back(read(pieces[i]));
    for (const bool one : co_await WhenAll(std::move(reads))) connected = connected && one;
  }
  if (!connected) co_return ErrnoError(ECONNRESET, "the caller has gone");
  co_return OkStatus();
}

}  // namespace nacre::ost
