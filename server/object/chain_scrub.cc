// The chain's part in the scrub (server/object/scrubber.h): a block from any other member, the comparison of
// the members' copies, and a member that is to be filled anew.
#include <cerrno>
#include <cstring>

#include "common/log.h"
#include "rpc/convert.h"
#include "server/object/chain.h"
#include "server/object/server_core.h"

namespace nacre::ost {

bool Chain::IsInSync() const {
  std::lock_guard lock(mutex_);
  return (role_ == Role::kHead && !settling_) || role_ == Role::kMember;
}

Task<Status> Chain::FetchFromAny(ObjectId object, uint64_t block, std::span<std::byte> page) {
  const View view = Look();
  Status status = ErrnoError(ENODEV, "there is no other member to ask");
  if (view.next != nullptr) status = co_await FetchFrom(view.next, view.epoch, object, block, page);
  if (status.ok() || view.role != Role::kMember) co_return status;
  LinkPtr head;
  {
    std::lock_guard lock(mutex_);
    if (epoch_ == view.epoch) head = LinkTo(head_, {});
  }
  if (head == nullptr) co_return status;
  // The head hears this as from the MDS: nothing of the chain's order is meant.
  co_return co_await FetchFrom(head, /*epoch=*/0, object, block, page);
}

Task<Status> Chain::FetchFrom(LinkPtr link, uint32_t epoch, ObjectId object, uint64_t block,
                              std::span<std::byte> page) {
  const ChainStep step = place() == 0 ? ChainStep::kOutOfHead : ChainStep::kOutOfSecond;
  CO_ASSIGN_OR_RETURN(std::shared_ptr<BufferPool> buffers,
                      core_->chain_buffers.At(step, &core_->environment.transport));
  Allotment memory = co_await buffers->admission().Admit(0, 0, 1);
  Allotment::Share share = co_await memory.Take(1);
  BufferPool::Pages pages = buffers->Take(std::move(share), 1);
  std::memset(pages.data(0), 0, kBlockSize);  // what lies behind the object's end, and holes
  proto::ObjectRequest request;
  proto::ObjectRange* range = request.mutable_read()->add_ranges();
  *range->mutable_object() = ToProto(object);
  range->set_offset(block * kBlockSize);
  range->set_length(kBlockSize);
  std::vector<MemorySpan> spans(1, buffers->SpanOf(pages.index(0)));
  CO_ASSIGN_OR_RETURN(proto::ObjectReply reply, co_await Call(link, epoch, std::move(request),
                                                              std::move(spans), ChainLink::kChangeTimeout));
  if (reply.read().ranges_size() != 1) co_return ErrnoError(EPROTO, "an answer without the range");
  CO_RETURN_IF_ERROR(FromProto(reply.read().ranges(0).status()));
  std::memcpy(page.data(), pages.data(0), kBlockSize);
  co_return OkStatus();
}

Task<StatusOr<Chain::Digests>> Chain::AskDigests(ObjectId object, uint64_t first, uint64_t count) {
  const View view = Look();
  Digests digests;
  digests.epoch = view.epoch;
  if (view.next == nullptr) co_return digests;
  proto::ObjectRequest request;
  *request.mutable_digest()->mutable_object() = ToProto(object);
  request.mutable_digest()->set_first(first);
  request.mutable_digest()->set_count(count);
  std::vector<MemorySpan> none;
  CO_ASSIGN_OR_RETURN(proto::ObjectReply reply, co_await Call(view.next, view.epoch, std::move(request),
                                                              std::move(none), ChainLink::kChangeTimeout));
  digests.members.assign(reply.digest().members().begin(), reply.digest().members().end());
  co_return digests;
}

Task<void> Chain::FillAnew(std::string member, uint32_t epoch, ObjectId object) {
  {
    std::lock_guard lock(mutex_);
    if (epoch_ != epoch || role_ != Role::kHead) co_return;
    distrusted_[member].insert(object);
  }
  co_await GiveUp(std::move(member), epoch,
                  ErrnoError(EBADMSG, absl::StrCat("its copy of object ", object.ToString(),
                                                   " is another one than the head's; it is filled anew")));
}

bool Chain::Distrusts(const std::string& member, const ObjectId& object) const {
  std::lock_guard lock(mutex_);
  auto found = distrusted_.find(member);
  return found != distrusted_.end() && found->second.contains(object);
}

void Chain::Trust(const std::string& member, const ObjectId& object) {
  std::lock_guard lock(mutex_);
  auto found = distrusted_.find(member);
  if (found == distrusted_.end()) return;
  found->second.erase(object);
  if (found->second.empty()) distrusted_.erase(found);
}

}  // namespace nacre::ost
