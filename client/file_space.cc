// Holes and reserved space in the objects of a file.
#include <cerrno>

#include "client/file_data.h"
#include "rpc/convert.h"

namespace nacre::client {
namespace {

// Each object's part of an extent: contiguous in the object, whatever the stripes.
struct ObjectExtent {
  uint32_t stripe;
  uint64_t begin;
  uint64_t end;
};

std::vector<ObjectExtent> ObjectExtents(const LayoutMap& layout, uint64_t offset, uint64_t length) {
  std::vector<ObjectExtent> extents;
  for (uint32_t stripe = 0; stripe < layout.stripe_count(); ++stripe) {
    uint64_t begin = layout.ObjectEnd(stripe, offset);
    uint64_t end = layout.ObjectEnd(stripe, offset + length);
    if (begin < end) extents.push_back({stripe, begin, end});
  }
  return extents;
}

proto::ObjectRequest Punch(const ObjectId& object, const ObjectExtent& extent, const Fid&) {
  proto::ObjectRequest request;
  *request.mutable_punch()->mutable_object() = ToProto(object);
  request.mutable_punch()->set_offset(extent.begin);
  request.mutable_punch()->set_length(extent.end - extent.begin);
  return request;
}

proto::ObjectRequest Preallocate(const ObjectId& object, const ObjectExtent& extent, const Fid& fid) {
  proto::ObjectRequest request;
  *request.mutable_preallocate()->mutable_object() = ToProto(object);
  *request.mutable_preallocate()->mutable_parent() = ToProto(fid);
  request.mutable_preallocate()->set_offset(extent.begin);
  request.mutable_preallocate()->set_length(extent.end - extent.begin);
  return request;
}

// A request for each object's part of the range.
std::vector<proto::ObjectRequest> ForEachObject(
    const LayoutMap& layout, const SpaceChange& change, const Fid& fid,
    proto::ObjectRequest (*make)(const ObjectId&, const ObjectExtent&, const Fid&)) {
  std::vector<proto::ObjectRequest> requests;
  for (const ObjectExtent& extent : ObjectExtents(layout, change.offset, change.length)) {
    requests.push_back(make(layout.Object(extent.stripe), extent, fid));
    requests.back().set_ost(layout.Ost(extent.stripe));
  }
  return requests;
}

}  // namespace

Task<Status> FileData::ChangeSpace(InodePtr inode, LayoutPtr layout, SpaceChange change, Pending* sent) {
  if (layout == nullptr) {
    co_return ErrnoError(EBUSY,
                         absl::StrFormat("file %s was truncated by another client meanwhile: try again",
                                         inode->fid.ToString()));
  }
  if (change.punches) {
    CO_RETURN_IF_ERROR(co_await Send(inode, change.offset, change.offset + change.length));
    Drop(*inode, change.offset, change.offset + change.length);
    std::vector<proto::ObjectRequest> punches = ForEachObject(*layout, change, inode->fid, Punch);
    CO_RETURN_IF_ERROR(co_await SendToObjects(inode, std::move(punches), sent));
  }
  if (!change.preallocates) co_return OkStatus();
  std::vector<proto::ObjectRequest> requests = ForEachObject(*layout, change, inode->fid, Preallocate);
  co_return co_await SendToObjects(inode, std::move(requests), sent);
}

Task<Status> FileData::SendToObjects(InodePtr inode, std::vector<proto::ObjectRequest> requests,
                                     Pending* sent) {
  std::vector<Task<StatusOr<proto::ObjectReply>>> calls;
  std::vector<OstIndex> osts;
  for (proto::ObjectRequest& request : requests) {
    osts.push_back(request.ost());
    calls.push_back(io_.Send(entrance_.epoch(), std::move(request)));
  }
  auto replies = co_await WhenAll(std::move(calls));
  Status first;
  Losses touched;
  for (size_t i = 0; i < replies.size(); ++i) {
    if (!replies[i].ok()) {
      if (first.ok()) first = replies[i].status();
      continue;
    }
    sent->blocks_delta += replies[i]->write().blocks_delta();
    touched.emplace(osts[i], replies[i]->losses());
  }
  durability_.Written(inode, touched);
  co_return first;
}

}  // namespace nacre::client
