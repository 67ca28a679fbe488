#include "server/metadata/object_io.h"

#include <cerrno>

#include "common/crc32c.h"
#include "rpc/convert.h"

namespace nacre::mds {
namespace {

struct Stripe {
  OstIndex ost = 0;
  ObjectId object;
};

std::vector<Stripe> StripesOf(const Layout& layout) {
  std::vector<Stripe> stripes;
  for (uint32_t group : StripeGroups(layout)) {
    stripes.push_back({group, {layout.object_sequence, static_cast<uint32_t>(stripes.size())}});
  }
  return stripes;
}

Task<StatusOr<proto::ObjectReply>> Call(MdsPtr mds, proto::ObjectRequest request) {
  CO_ASSIGN_OR_RETURN(std::shared_ptr<ObjectStub> stub, mds->osts.Stub(request.ost()));
  std::vector<MemorySpan> none;
  co_return co_await stub->Call(std::move(request), CallMemory::kNone, std::move(none));
}

// Makes the change, and makes it durable: anew if the OST has lost power in between, and the change perhaps
// with it. NOT_FOUND, durably, as the OST says it of a truncation.
Task<Status> ChangeDurably(MdsPtr mds, proto::ObjectRequest change) {
  proto::ObjectRequest sync;
  sync.set_ost(change.ost());
  sync.mutable_sync();
  for (;;) {
    auto changed = co_await Call(mds, change);
    if (!changed.ok() && !absl::IsNotFound(changed.status())) co_return changed.status();
    auto synced = co_await Call(mds, sync);
    CO_RETURN_IF_ERROR(synced.status());
    if (!changed.ok() || changed->losses() == synced->losses()) co_return changed.status();
  }
}

struct Measured {
  Status status;
  uint64_t size = 0;
  uint64_t blocks = 0;
};

Task<Measured> MeasureOne(MdsPtr mds, Stripe stripe) {
  Measured measured;
  proto::ObjectRequest request;
  request.set_ost(stripe.ost);
  *request.mutable_stat()->mutable_object() = ToProto(stripe.object);
  auto reply = co_await Call(std::move(mds), std::move(request));
  measured.status = reply.status();
  if (!reply.ok() || !reply->stat().exists()) co_return measured;
  measured.size = reply->stat().size();
  measured.blocks = reply->stat().blocks();
  co_return measured;
}

Task<Measured> CutOne(MdsPtr mds, Stripe stripe, uint64_t size) {
  proto::ObjectRequest request;
  request.set_ost(stripe.ost);
  *request.mutable_truncate()->mutable_object() = ToProto(stripe.object);
  request.mutable_truncate()->set_size(size);
  // The decision to cut is forgotten once the new size is committed: no loss of power may bring the old end
  // back then.
  Measured uncut;
  uncut.status = co_await ChangeDurably(mds, std::move(request));
  if (!uncut.status.ok() && !absl::IsNotFound(uncut.status)) co_return uncut;
  co_return co_await MeasureOne(std::move(mds), stripe);
}

Task<StatusOr<ObjectSizes>> Collect(Layout layout, std::vector<Task<Measured>> tasks) {
  std::vector<Measured> all = co_await WhenAll(std::move(tasks));
  ObjectSizes sizes;
  for (uint32_t n = 0; n < all.size(); ++n) {
    CO_RETURN_IF_ERROR(all[n].status);
    sizes.blocks += all[n].blocks;
    sizes.end = std::max(sizes.end, FileSizeFor(layout, n, all[n].size));
  }
  co_return sizes;
}

}  // namespace

Task<StatusOr<ObjectSizes>> MeasureObjects(MdsPtr mds, Layout layout) {
  std::vector<Task<Measured>> tasks;
  for (const Stripe& stripe : StripesOf(layout)) tasks.push_back(MeasureOne(mds, stripe));
  co_return co_await Collect(std::move(layout), std::move(tasks));
}

Task<StatusOr<ObjectSizes>> CutObjects(MdsPtr mds, Layout layout, uint64_t size) {
  std::vector<Task<Measured>> tasks;
  for (const Stripe& stripe : StripesOf(layout)) {
    tasks.push_back(CutOne(mds, stripe, ObjectSizeFor(layout, stripe.object.stripe, size)));
  }
  co_return co_await Collect(std::move(layout), std::move(tasks));
}

Task<StatusOr<uint64_t>> WriteFirstBytes(MdsPtr mds, Fid fid, Layout layout, std::string data) {
  std::vector<Stripe> stripes = StripesOf(layout);
  if (stripes.empty())
    co_return ErrnoError(EIO, absl::StrCat("file ", fid.ToString(), " has an empty layout"));
  std::span<std::byte> bytes(reinterpret_cast<std::byte*>(data.data()), data.size());
  CO_ASSIGN_OR_RETURN(auto region, mds->env.transport.Register(bytes.data(), bytes.size()));
  proto::ObjectRequest request;
  request.set_ost(stripes[0].ost);
  proto::WriteRange* write = request.mutable_write()->add_ranges();
  *write->mutable_range()->mutable_object() = ToProto(stripes[0].object);
  write->mutable_range()->set_length(data.size());
  *write->mutable_parent() = ToProto(fid);
  std::vector<uint32_t> crcs(CrcCount(0, data.size()));
  Crc32cBlocks(0, bytes, crcs.data());
  for (uint32_t crc : crcs) write->add_crc(crc);
  // They may have been fsynced where they lay: the OST's loss of power must not take them back.
  request.mutable_write()->set_sync(true);
  std::vector<MemorySpan> memory(1);
  memory[0].region = std::move(region);
  memory[0].length = data.size();
  CO_ASSIGN_OR_RETURN(auto stub, mds->osts.Stub(stripes[0].ost));
  auto reply = co_await stub->Call(std::move(request), CallMemory::kGetSource, std::move(memory));
  CO_RETURN_IF_ERROR(reply.status());
  co_return static_cast<uint64_t>(std::max<int64_t>(reply->write().blocks_delta(), 0));
}

Task<Status> DestroyObjects(MdsPtr mds, OstIndex ost, std::vector<ObjectId> objects) {
  proto::ObjectRequest request;
  request.set_ost(ost);
  for (const ObjectId& object : objects) *request.mutable_destroy()->add_objects() = ToProto(object);
  co_return co_await ChangeDurably(std::move(mds), std::move(request));
}

}  // namespace nacre::mds
