// Blocks that are bad here, from other members; and the chain's part in the scrub (server/object/scrubber.h):
// the comparison of the members' copies, and a member that is to be filled anew.
#include <cerrno>
#include <cstring>

#include "common/crc32c.h"
#include "common/log.h"
#include "rpc/convert.h"
#include "server/object/chain.h"
#include "server/object/filling.h"
#include "server/object/server_core.h"

namespace nacre::ost {
namespace {

constexpr int kMostRefusals = 20;  // by a member that knows of another epoch than this one
constexpr Duration kRefusedPause = std::chrono::milliseconds(50);
// A member is given up when its connection breaks, and mostly it is back at once, to be filled. For so long
// after the last one has gone a block is waited for that nobody else has: under the lock of its range.
constexpr Duration kBackSoon = std::chrono::seconds(10);
constexpr int kReads = 2;  // of one member's block: the first may have been damaged on its way here

}  // namespace

bool Chain::IsInSync() const {
  std::lock_guard lock(mutex_);
  return (role_ == Role::kHead && !settling_) || role_ == Role::kMember;
}

// --- a block from another member ---

Task<Status> Chain::FetchBlock(WantedBlock wanted, std::span<std::byte> page) {
  co_return co_await Fetch(wanted, page, /*also_head=*/false);
}

Task<Status> Chain::FetchFromAny(WantedBlock wanted, std::span<std::byte> page) {
  co_return co_await Fetch(wanted, page, /*also_head=*/true);
}

// A member that is being filled may lack much, or have it from before; the checksum tells. One that has not
// been reached yet comes last.
std::vector<Chain::Asked> Chain::ThoseToAsk(uint32_t epoch, bool also_head) const {
  std::vector<Asked> asked;
  std::lock_guard lock(mutex_);
  if (epoch_ != epoch) return asked;
  if (next_ != nullptr) asked.push_back({next_, epoch});
  for (const bool reached : {true, false}) {
    for (const FillingPtr& filling : fillings_)
      if (filling->takes_changes() == reached) asked.push_back({filling->link(), epoch});
  }
  if (!also_head || role_ != Role::kMember) return asked;
  if (LinkPtr head = LinkTo(head_, {}); head != nullptr) asked.push_back({std::move(head), 0});
  return asked;
}

bool Chain::HasPlace() const {
  std::lock_guard lock(mutex_);
  return role_ != Role::kWaiting;
}

bool Chain::AwaitsOthers() const {
  std::lock_guard lock(mutex_);
  return alone_since_ && core_->environment.clock.Now() - *alone_since_ < kBackSoon;
}

// A chain that changes meanwhile refuses what is asked in the epoch before, and may have others to ask. Those
// behind hear of an epoch a moment before this one does.
Task<Status> Chain::Fetch(WantedBlock wanted, std::span<std::byte> page, bool also_head) {
  for (int refused = 0;;) {
    const uint32_t asked_in = epoch();
    Status status = ErrnoError(ENODEV, "there is no other member to ask");
    const std::vector<Asked> others = ThoseToAsk(asked_in, also_head);
    for (const Asked& asked : others) {
      for (int read = 0; read < kReads; ++read) {
        status = co_await FetchFrom(asked, wanted, page);
        if (!status.ok()) break;
        if (Crc32c(page) == wanted.crc) co_return OkStatus();
        status = ErrnoError(EBADMSG, "the other members have other bytes there");
      }
    }
    if (core_->stopping()) co_return ErrnoError(ECONNRESET, "the server is stopping");
    if (epoch() != asked_in) continue;
    if (others.empty() && AwaitsOthers()) {
      co_await core_->Pause(kRefusedPause);
      continue;
    }
    if (ToErrno(status) == ESTALE && ++refused <= kMostRefusals) {
      co_await core_->Pause(kRefusedPause);
      continue;
    }
    if (!HasPlace()) co_return ErrnoError(ECONNRESET, "this server has no place in the OST's chain any more");
    co_return status;
  }
}

Task<Status> Chain::FetchFrom(Asked asked, WantedBlock wanted, std::span<std::byte> page) {
  const ChainStep step = place() == 0 ? ChainStep::kOutOfHead : ChainStep::kOutOfSecond;
  CO_ASSIGN_OR_RETURN(std::shared_ptr<BufferPool> buffers,
                      core_->chain_buffers.At(step, &core_->environment.transport));
  Allotment memory = co_await buffers->admission().Admit(0, 0, 1);
  Allotment::Share share = co_await memory.Take(1);
  BufferPool::Pages pages = buffers->Take(std::move(share), 1);
  std::memset(pages.data(0), 0, kBlockSize);  // what lies behind the object's end, and holes
  proto::ObjectRequest request;
  proto::ObjectRange* range = request.mutable_read()->add_ranges();
  *range->mutable_object() = ToProto(wanted.object);
  range->set_offset(wanted.block * kBlockSize);
  range->set_length(kBlockSize);
  std::vector<MemorySpan> spans(1, buffers->SpanOf(pages.index(0)));
  CO_ASSIGN_OR_RETURN(proto::ObjectReply reply, co_await Call(asked.link, asked.epoch, std::move(request),
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
