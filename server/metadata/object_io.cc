#include "server/metadata/object_io.h"

#include <cerrno>

#include "common/crc32c.h"
#include "rpc/convert.h"

namespace nacre::mds {
namespace {

constexpr Duration kObjectPatience = std::chrono::seconds(30);

// Waits for an OST that is away.
Task<StatusOr<proto::ObjectReply>> Call(MdsPtr mds, proto::ObjectRequest request) {
  CO_ASSIGN_OR_RETURN(std::shared_ptr<ObjectStub> stub, mds->osts.Stub(request.ost()));
  std::vector<MemorySpan> none;
  co_return co_await stub->Call(std::move(request), CallMemory::kNone, std::move(none));
}

// Makes the change by calls of the given kind, and makes it durable: anew if the OST has lost power in
// between, and the change perhaps with it. NOT_FOUND, durably, as the OST says it of a truncation.
template <typename CallKind>
Task<Status> ChangeDurably(CallKind call, MdsPtr mds, proto::ObjectRequest change) {
  proto::ObjectRequest sync;
  sync.set_ost(change.ost());
  sync.mutable_sync();
  for (;;) {
    auto changed = co_await call(mds, change);
    if (!changed.ok() && !absl::IsNotFound(changed.status())) co_return changed.status();
    auto synced = co_await call(mds, sync);
    CO_RETURN_IF_ERROR(synced.status());
    if (!changed.ok() || changed->losses() == synced->losses()) co_return changed.status();
  }
}

Task<StatusOr<proto::ObjectReply>> CallBriefly(MdsPtr mds, proto::ObjectRequest request) {
  ObjectCall input;
  input.request = std::move(request);
  co_return co_await CallWithin(std::move(mds), std::move(input), kObjectPatience);
}

proto::ObjectRequest StatRequest(const Stripe& stripe) {
  proto::ObjectRequest request;
  request.set_ost(stripe.ost);
  *request.mutable_stat()->mutable_object() = ToProto(stripe.object);
  return request;
}

}  // namespace

Task<StatusOr<proto::ObjectReply>> CallWithin(MdsPtr mds, ObjectCall call, Duration patience) {
  CO_ASSIGN_OR_RETURN(std::shared_ptr<ObjectStub> stub, mds->osts.Stub(call.request.ost()));
  auto cancellation = std::make_shared<Cancellation>(mds->env.clock.Now() + patience);
  Status why = absl::UnavailableError(absl::StrFormat("OST %d has not answered for %d s", call.request.ost(),
                                                      patience / std::chrono::seconds(1)));
  auto timer =
      mds->env.clock.After(mds->env.executor, patience, [cancellation, why] { cancellation->Cancel(why); });
  co_return co_await stub->Call(std::move(call.request), call.kind, std::move(call.memory),
                                std::move(cancellation));
}

std::vector<Stripe> StripesOf(const Layout& layout) {
  std::vector<Stripe> stripes;
  for (uint32_t group : StripeGroups(layout)) {
    stripes.push_back({group, {layout.object_sequence, static_cast<uint32_t>(stripes.size())}});
  }
  return stripes;
}

Task<StatusOr<uint64_t>> CutObject(MdsPtr mds, Stripe stripe, uint64_t size) {
  proto::ObjectRequest request;
  request.set_ost(stripe.ost);
  *request.mutable_truncate()->mutable_object() = ToProto(stripe.object);
  request.mutable_truncate()->set_size(size);
  // The decision to cut is forgotten once the new size is committed: no loss of power may bring the old end
  // back then.
  Status cut = co_await ChangeDurably(CallBriefly, mds, std::move(request));
  if (!cut.ok() && !absl::IsNotFound(cut)) co_return cut;
  proto::ObjectRequest stat = StatRequest(stripe);
  CO_ASSIGN_OR_RETURN(proto::ObjectReply reply, co_await CallBriefly(std::move(mds), std::move(stat)));
  co_return reply.stat().exists() ? reply.stat().blocks() : 0;
}

Task<StatusOr<uint64_t>> WritePiece(MdsPtr mds, Fid fid, Layout layout, LayoutPiece piece, std::string data) {
  std::span<std::byte> bytes(reinterpret_cast<std::byte*>(data.data()), data.size());
  CO_ASSIGN_OR_RETURN(auto region, mds->env.transport.Register(bytes.data(), bytes.size()));
  proto::ObjectRequest request;
  request.set_ost(piece.ost);
  proto::WriteRange* write = request.mutable_write()->add_ranges();
  *write->mutable_range()->mutable_object() = ToProto(ObjectId{layout.object_sequence, piece.stripe});
  write->mutable_range()->set_offset(piece.object_offset);
  write->mutable_range()->set_length(data.size());
  *write->mutable_parent() = ToProto(fid);
  std::vector<uint32_t> crcs(CrcCount(piece.object_offset, data.size()));
  Crc32cBlocks(piece.object_offset, bytes, crcs.data());
  for (uint32_t crc : crcs) write->add_crc(crc);
  // They may have been fsynced where they lay: the OST's loss of power must not take them back.
  request.mutable_write()->set_sync(true);
  ObjectCall input;
  input.request = std::move(request);
  input.kind = CallMemory::kGetSource;
  input.memory.resize(1);
  input.memory[0].region = std::move(region);
  input.memory[0].length = data.size();
  auto reply = co_await CallWithin(std::move(mds), std::move(input), kObjectPatience);
  CO_RETURN_IF_ERROR(reply.status());
  co_return static_cast<uint64_t>(std::max<int64_t>(reply->write().blocks_delta(), 0));
}

Task<StatusOr<uint64_t>> WriteFirstBytes(MdsPtr mds, Fid fid, Layout layout, std::string data) {
  if (StripesOf(layout).empty())
    co_return ErrnoError(EIO, absl::StrCat("file ", fid.ToString(), " has an empty layout"));
  const LayoutPiece first = PieceAt(layout, 0, data.size());
  co_return co_await WritePiece(std::move(mds), fid, std::move(layout), first, std::move(data));
}

Task<Status> DestroyObjects(MdsPtr mds, OstIndex ost, std::vector<ObjectId> objects) {
  proto::ObjectRequest request;
  request.set_ost(ost);
  for (const ObjectId& object : objects) *request.mutable_destroy()->add_objects() = ToProto(object);
  co_return co_await ChangeDurably(Call, std::move(mds), std::move(request));
}

}  // namespace nacre::mds
