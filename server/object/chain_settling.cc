// A new head and the member behind it (server/object/in_doubt.h).
//
// A change that the previous head had begun may have been made at the member behind this one and not here,
// and may never be repeated: its client may have died. Once this head has served anybody as if that change
// had never happened, it must not come back when the member behind becomes head in turn. So before this head
// serves, it compares the objects in question, and has a member that is ahead taken out and filled again.
#include <cerrno>

#include "rpc/convert.h"
#include "server/object/chain.h"
#include "server/object/change_proto.h"
#include "server/object/server_core.h"

namespace nacre::ost {

std::set<ObjectId> Chain::InDoubtObjects() const {
  std::lock_guard lock(mutex_);
  return in_doubt_.List();
}

Task<void> Chain::Settle(std::shared_ptr<ServerCore> core, Chain* chain, uint32_t epoch) {
  ServerCore::Running running(core);
  const LinkPtr next = chain->Look().next;
  if (next == nullptr || !chain->Current(epoch)) co_return;
  Status same = co_await chain->CompareWith(next, epoch);
  if (!same.ok()) co_return co_await chain->GiveUp(next->uuid(), epoch, same);
  std::lock_guard lock(chain->mutex_);
  if (chain->epoch_ == epoch) chain->settling_ = false;
}

// EBADMSG: the member behind is ahead.
Task<Status> Chain::CompareWith(LinkPtr next, uint32_t epoch) {
  co_await store_->journal().AwaitCommits();  // none begins any more that the head before has handed on
  proto::ObjectRequest request;
  request.mutable_list()->set_in_doubt(true);
  std::vector<MemorySpan> none;
  CO_ASSIGN_OR_RETURN(proto::ObjectReply reply, co_await Call(next, epoch, std::move(request),
                                                              std::move(none), ChainLink::kChangeTimeout));
  if (!reply.list().end()) co_return ErrnoError(EBADMSG, "it may be ahead of this head in too many objects");
  for (const proto::ListedObject& there : reply.list().objects()) {
    const ObjectId id = FromProto(there.object());
    CO_ASSIGN_OR_RETURN(std::optional<ObjectRecord> here, store_->Stat(id));
    const ObjectVersion mine = VersionOf(here);
    const ObjectVersion its = FromProto(there.version());
    if (mine == its) continue;
    co_return ErrnoError(EBADMSG,
                         absl::StrFormat("object %s has version %d.%d there and %d.%d here, at its new "
                                         "head",
                                         id.ToString(), its.epoch, its.changes, mine.epoch, mine.changes));
  }
  co_return OkStatus();
}

}  // namespace nacre::ost
