#include <cerrno>

#include "rpc/convert.h"
#include "server/object/chain.h"
#include "server/object/ops/ops.h"

namespace nacre::ost {

// The one who asks has locked the range at the head, so that it is the same everywhere: what the lock here
// keeps out is a late copy of an earlier change.
Task<Status> DigestOp(OpContext context) {
  const proto::DigestObject& request = context.request->digest();
  const ObjectId id = FromProto(request.object());
  const uint64_t first = request.first(), count = request.count();
  if (context.target->chain == nullptr)
    co_return ErrnoError(EINVAL, "this OST has one member here (copies = 1 in its configuration)");
  if (count == 0 || count > kMostDigestBlocks || first % kChunkBlocks != 0 || count % kChunkBlocks != 0 ||
      first > kMaxObjectBlocks - count) {
    co_return ErrnoError(EINVAL, absl::StrCat("a digest of ", count, " blocks from ", first, " on: at most ",
                                              kMostDigestBlocks, ", both multiples of ", kChunkBlocks));
  }
  ObjectStore& store = *context.target->store;
  CO_ASSIGN_OR_RETURN(std::shared_ptr<ObjectState> object, store.Acquire(id));
  RangeLock::Guard locked = co_await object->locks.Lock(first, first + count, /*exclusive=*/false);
  CO_ASSIGN_OR_RETURN(const uint32_t mine, store.Digest(id, first, count));
  CO_ASSIGN_OR_RETURN(Chain::Digests others, co_await context.target->chain->AskDigests(id, first, count));
  proto::DigestObjectReply* reply = context.reply->mutable_digest();
  proto::MemberDigest* out = reply->add_members();
  out->set_uuid(store.superblock().uuid);
  out->set_digest(mine);
  for (proto::MemberDigest& other : others.members) *reply->add_members() = std::move(other);
  co_return OkStatus();
}

}  // namespace nacre::ost
