#include "server/metadata/object_copy.h"

#include <algorithm>
#include <cerrno>

#include "common/crc32c.h"
#include "rpc/convert.h"

namespace nacre::mds {
namespace {

constexpr uint64_t kWindow = 4 << 20;
constexpr uint64_t kLongestRange = 1 << 20;  // of a write; an OST with several members refuses twice that
constexpr Duration kCallPatience = std::chrono::seconds(10);
constexpr int kReads = 3;  // of a block that does not match its checksum: the transfer may be at fault

}  // namespace

ObjectCopy::ObjectCopy(MdsPtr mds, Fid fid, Layout from, Layout to, std::shared_ptr<CopyProgress> progress)
    : mds_(std::move(mds)),
      fid_(fid),
      from_(std::move(from)),
      to_(std::move(to)),
      progress_(std::move(progress)),
      old_(StripesOf(from_)),
      new_(StripesOf(to_)) {}

Task<Status> ObjectCopy::Run(Duration until) {
  until_ = until;
  began_ = mds_->env.clock.Now();
  copied_ = 0;
  progress_->copied = 0;
  buffer_.resize(kWindow);
  std::byte* const memory = reinterpret_cast<std::byte*>(buffer_.data());
  CO_ASSIGN_OR_RETURN(region_, mds_->env.transport.Register(memory, buffer_.size()));
  CO_ASSIGN_OR_RETURN(versions_, co_await Versions());
  for (const Stripe& stripe : old_) CO_RETURN_IF_ERROR(co_await CopyObject(stripe));
  co_return co_await SyncAll();
}

Task<StatusOr<proto::ObjectReply>> ObjectCopy::Call(ObjectCall call) {
  const Duration left = until_ - mds_->env.clock.Now();
  if (progress_->given_up) co_return absl::CancelledError("nobody waits for the file's move any more");
  if (left <= Duration{0}) co_return absl::DeadlineExceededError("the copy takes too long");
  co_return co_await CallWithin(mds_, std::move(call), std::min(left, kCallPatience));
}

Task<StatusOr<proto::ObjectReply>> ObjectCopy::Stat(Stripe stripe) {
  ObjectCall call;
  call.request.set_ost(stripe.ost);
  *call.request.mutable_stat()->mutable_object() = ToProto(stripe.object);
  co_return co_await Call(std::move(call));
}

Task<StatusOr<std::vector<ObjectCopy::Version>>> ObjectCopy::Versions() {
  std::vector<Version> versions;
  uint64_t blocks = 0;
  for (const Stripe& stripe : old_) {
    CO_ASSIGN_OR_RETURN(proto::ObjectReply reply, co_await Stat(stripe));
    if (reply.stat().exists() && !reply.stat().has_version()) {
      co_return ErrnoError(EOPNOTSUPP,
                           absl::StrFormat("the server of OST %d is of an earlier version and does not "
                                           "say when an object changes: update it first",
                                           stripe.ost));
    }
    const proto::ObjectVersion& version = reply.stat().version();
    versions.push_back({reply.stat().exists(), version.epoch(), version.changes(), reply.losses()});
    blocks += reply.stat().blocks();
  }
  progress_->total = blocks * 512;
  co_return versions;
}

Task<StatusOr<bool>> ObjectCopy::Unchanged() {
  CO_ASSIGN_OR_RETURN(std::vector<Version> now, co_await Versions());
  co_return now == versions_;
}

Task<Status> ObjectCopy::CopyObject(Stripe stripe) {
  bool may_be_hole = true;
  for (uint64_t at = 0;;) {
    if (may_be_hole) {
      CO_ASSIGN_OR_RETURN(std::optional<uint64_t> data, co_await NextData(stripe, at));
      if (!data) co_return OkStatus();
      at = *data / kBlockSize * kBlockSize;
    }
    CO_ASSIGN_OR_RETURN(Window window, co_await Read(stripe, at));
    const bool end = window.end;
    at = window.begin + window.length;
    may_be_hole = window.data.empty() || window.data.back().second < window.length;
    const uint64_t bytes = window.length;
    CO_RETURN_IF_ERROR(co_await Write(stripe.object.stripe, std::move(window)));
    CO_RETURN_IF_ERROR(co_await KeepRate(bytes));
    if (end) co_return OkStatus();
  }
}

Task<StatusOr<std::optional<uint64_t>>> ObjectCopy::NextData(Stripe stripe, uint64_t offset) {
  ObjectCall call;
  call.request.set_ost(stripe.ost);
  *call.request.mutable_seek()->mutable_object() = ToProto(stripe.object);
  call.request.mutable_seek()->set_offset(offset);
  CO_ASSIGN_OR_RETURN(proto::ObjectReply reply, co_await Call(std::move(call)));
  std::optional<uint64_t> found;
  if (reply.seek().found()) found = reply.seek().offset();
  co_return found;
}

Task<StatusOr<ObjectCopy::Window>> ObjectCopy::Read(Stripe stripe, uint64_t offset) {
  for (int reads = 1;; ++reads) {
    ObjectCall call;
    call.request.set_ost(stripe.ost);
    proto::ObjectRange* range = call.request.mutable_read()->add_ranges();
    *range->mutable_object() = ToProto(stripe.object);
    range->set_offset(offset);
    range->set_length(kWindow);
    call.kind = CallMemory::kPutTarget;
    call.memory.resize(1);
    call.memory[0].region = region_;
    call.memory[0].length = kWindow;
    CO_ASSIGN_OR_RETURN(proto::ObjectReply reply, co_await Call(std::move(call)));
    auto window = Examine(stripe, offset, reply);
    if (window.ok() || !absl::IsDataLoss(window.status()) || reads == kReads) co_return window;
  }
}

// DATA_LOSS: a block does not match its checksum.
StatusOr<ObjectCopy::Window> ObjectCopy::Examine(const Stripe& stripe, uint64_t offset,
                                                 const proto::ObjectReply& reply) const {
  const std::string place = absl::StrFormat("object %s on OST %d", stripe.object.ToString(), stripe.ost);
  if (reply.read().ranges_size() != 1)
    return ErrnoError(EIO,
                      absl::StrFormat("%s: %d ranges instead of one", place, reply.read().ranges_size()));
  const proto::ReadRangeResult& result = reply.read().ranges(0);
  RETURN_IF_ERROR(FromProto(result.status()));
  Window window;
  window.begin = offset;
  window.length = std::min<uint64_t>(result.length(), kWindow);
  window.end = window.length < kWindow;
  uint64_t at = 0;
  for (const proto::Hole& hole : result.holes()) {
    const uint64_t begin = std::min(hole.offset(), window.length);
    if (begin > at) window.data.emplace_back(at, begin);
    at = std::max(at, std::min(begin + std::min(hole.length(), window.length - begin), window.length));
  }
  if (at < window.length) window.data.emplace_back(at, window.length);
  window.sums.assign(result.crc().begin(), result.crc().end());
  if (window.sums.size() != CrcCount(offset, window.length))
    return ErrnoError(
        EIO, absl::StrFormat("%s: %d checksums for %d bytes", place, result.crc_size(), window.length));
  const std::byte* const memory = reinterpret_cast<const std::byte*>(buffer_.data());
  for (const auto& [begin, end] : window.data) {
    if (begin % kBlockSize != 0)
      return ErrnoError(EIO, absl::StrFormat("%s: data begins at %d, within a block", place, offset + begin));
    std::vector<uint32_t> sums(CrcCount(begin, end - begin));
    Crc32cBlocks(begin, {memory + begin, end - begin}, sums.data());
    if (!std::equal(sums.begin(), sums.end(), window.sums.begin() + static_cast<long>(begin / kBlockSize)))
      return absl::DataLossError(
          absl::StrFormat("%s: the bytes behind %d do not match their checksums", place, offset + begin));
  }
  return window;
}

// The buffer's data, in one request to each OST that gets some.
Task<Status> ObjectCopy::Write(uint32_t stripe, Window window) {
  std::map<OstIndex, ObjectCall> calls;
  for (const auto& [begin, end] : window.data) {
    for (uint64_t at = begin; at < end;) {
      const LayoutPiece from = PieceOf(from_, stripe, window.begin + at, std::min(end - at, kLongestRange));
      const LayoutPiece to = PieceAt(to_, from.file_offset, from.length);
      ObjectCall& call = calls[to.ost];
      call.request.set_ost(to.ost);
      proto::WriteRange* range = call.request.mutable_write()->add_ranges();
      *range->mutable_parent() = ToProto(fid_);
      *range->mutable_range()->mutable_object() = ToProto(ObjectId{to_.object_sequence, to.stripe});
      range->mutable_range()->set_offset(to.object_offset);
      range->mutable_range()->set_length(to.length);
      range->mutable_range()->set_memory_offset(at);
      const size_t first = at / kBlockSize;
      for (size_t i = 0; i < CrcCount(at, to.length); ++i) range->add_crc(window.sums[first + i]);
      at += to.length;
    }
  }
  for (auto& [ost, call] : calls) {
    call.kind = CallMemory::kGetSource;
    call.memory.resize(1);
    call.memory[0].region = region_;
    call.memory[0].length = kWindow;
    CO_ASSIGN_OR_RETURN(proto::ObjectReply reply, co_await Call(std::move(call)));
    written_.emplace(ost, reply.losses());
  }
  co_return OkStatus();
}

Task<Status> ObjectCopy::KeepRate(uint64_t bytes) {
  copied_ += bytes;
  progress_->copied = copied_;
  if (progress_->bytes_per_second == 0) co_return OkStatus();
  const Duration due = began_ + TimeFor(copied_, progress_->bytes_per_second);
  const Duration ahead = due - mds_->env.clock.Now();
  if (ahead > Duration{0}) co_await mds_->env.clock.Sleep(ahead);
  co_return OkStatus();
}

Task<Status> ObjectCopy::SyncAll() {
  for (const auto& [ost, losses] : written_) {
    ObjectCall call;
    call.request.set_ost(ost);
    call.request.mutable_sync();
    CO_ASSIGN_OR_RETURN(proto::ObjectReply reply, co_await Call(std::move(call)));
    if (reply.losses() == losses) continue;
    co_return absl::UnavailableError(absl::StrFormat("OST %d has lost power while it was written to", ost));
  }
  co_return OkStatus();
}

Task<StatusOr<uint64_t>> ObjectCopy::CutTo(uint64_t size) {
  uint64_t blocks = 0;
  for (const Stripe& stripe : new_) {
    CO_ASSIGN_OR_RETURN(proto::ObjectReply reply, co_await Stat(stripe));
    if (!reply.stat().exists()) continue;
    const uint64_t end = ObjectSizeFor(to_, stripe.object.stripe, size);
    uint64_t left = reply.stat().blocks();
    if (reply.stat().size() > end) {
      CO_ASSIGN_OR_RETURN(left, co_await CutObject(mds_, stripe, end));
    }
    blocks += left;
  }
  co_return blocks;
}

}  // namespace nacre::mds
