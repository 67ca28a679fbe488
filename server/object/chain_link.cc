#include "server/object/chain_link.h"

#include <algorithm>
#include <cerrno>

#include "rpc/convert.h"

namespace nacre::ost {
namespace {

constexpr Duration kFirstPause = std::chrono::milliseconds(10);
constexpr Duration kLongestPause = std::chrono::milliseconds(200);

}  // namespace

// The number of a call, from its beginning to its end.
class ChainLink::Turn {
 public:
  Turn(ChainLink& link, uint32_t epoch) : link_(link), epoch_(epoch) {
    std::lock_guard lock(link_.mutex_);
    if (epoch > link_.failed_in_) {
      link_.first_failed_ = kNoTurn;
      link_.failed_in_ = epoch;
    }
    number_ = ++link_.last_;
    link_.under_way_.insert(number_);
  }
  ~Turn() {
    std::lock_guard lock(link_.mutex_);
    link_.under_way_.erase(number_);
  }
  Turn(const Turn&) = delete;

  // The other may have made a change that is not made here.
  void Fail() const {
    std::lock_guard lock(link_.mutex_);
    if (epoch_ == link_.failed_in_) link_.first_failed_ = std::min(link_.first_failed_, number_);
  }
  void Note(proto::ObjectRequest* request) const {
    std::lock_guard lock(link_.mutex_);
    request->set_chain_turn(number_);
    request->set_chain_low_water(std::min(*link_.under_way_.begin(), link_.first_failed_));
    proto::TurnsUnderWay* others = request->mutable_chain_under_way();
    others->mutable_turns()->Assign(link_.under_way_.begin(), link_.under_way_.lower_bound(number_));
  }

 private:
  ChainLink& link_;
  const uint32_t epoch_;
  uint64_t number_ = 0;
};

Task<StatusOr<proto::ObjectReply>> ChainLink::Call(proto::ObjectRequest request,
                                                   std::vector<MemorySpan> memory, Duration timeout,
                                                   std::function<bool()> goes_on) {
  const Turn turn(*this, request.chain_epoch());
  auto reply = co_await Repeat(turn, std::move(request), std::move(memory), timeout, std::move(goes_on));
  if (!reply.ok()) turn.Fail();
  co_return reply;
}

Task<StatusOr<proto::ObjectReply>> ChainLink::Repeat(const Turn& turn, proto::ObjectRequest request,
                                                     std::vector<MemorySpan> memory, Duration timeout,
                                                     std::function<bool()> goes_on) {
  request.set_ost(ost_);
  request.set_instance(member_.instance());
  const Duration begin = clock_.Now();
  for (Duration pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
    turn.Note(&request);
    auto reply = co_await Attempt(request, memory, timeout);
    if (reply.ok() || !IsRetryable(reply.status())) co_return reply;
    const int error = ToErrno(reply.status());
    if (error == EHOSTUNREACH || error == ETIMEDOUT) co_return reply;
    if (clock_.Now() - begin >= kPatience || !goes_on()) {
      co_return ErrnoError(ETIMEDOUT,
                           absl::StrCat(peer_->address(), " cannot be reached: ", reply.status().message()));
    }
    co_await clock_.Sleep(pause);
  }
}

Task<StatusOr<proto::ObjectReply>> ChainLink::Attempt(const proto::ObjectRequest& request,
                                                      std::vector<MemorySpan> memory, Duration timeout) {
  CallRequest call;
  call.kind = memory.empty()       ? CallMemory::kNone
              : request.has_read() ? CallMemory::kPutTarget
                                   : CallMemory::kGetSource;
  call.memory = std::move(memory);
  if (!request.SerializeToString(&call.body) || call.body.size() > kMaxBodySize) {
    co_return ErrnoError(
        EMSGSIZE, absl::StrCat("a request of ", request.ByteSizeLong(),
                               " bytes to a member of the chain is beyond the limit of ", kMaxBodySize));
  }
  CO_ASSIGN_OR_RETURN(std::string body, co_await peer_->Call(std::move(call), timeout));
  proto::ObjectReply reply;
  if (!reply.ParseFromString(body))
    co_return ErrnoError(EPROTO, absl::StrCat("the answer of ", peer_->address(), " is malformed"));
  CO_RETURN_IF_ERROR(FromProto(reply.status()));
  co_return reply;
}

}  // namespace nacre::ost
