#include "transport/verbs/server_link.h"

#include <absl/strings/str_format.h>

#include "common/log.h"
#include "common/metrics.h"
#include "transport/verbs/incoming_call.h"

namespace nacre::verbs {

ServerLink::ServerLink(std::shared_ptr<Rail> rail, std::shared_ptr<RegionTable> regions,
                       std::shared_ptr<CallSink> sink, AttachRequest request, Executor executor, Clock& clock,
                       uint32_t calls)
    : Channel(std::move(rail), std::move(executor), clock, calls, 0),  // clients only send
      regions_(std::move(regions)),
      sink_(std::move(sink)),
      client_(std::move(request.client)),
      close_(std::move(request.close)) {}

Status ServerLink::OnMessage(const FragmentHeader& header, std::string_view message) {
  static Counter& calls = GetCounter("transport.verbs.server.calls");
  if (header.kind != FragmentKind::kCall) {
    return ErrnoError(EPROTO, absl::StrFormat("a message of kind %d came to a server", header.kind));
  }
  ASSIGN_OR_RETURN(CallMessage call, ParseCall(message));
  RETURN_IF_ERROR(AddCall(header.call_id));
  calls.Add();
  auto self = std::static_pointer_cast<ServerLink>(shared_from_this());
  sink_->Start(std::make_shared<VerbsIncomingCall>(std::move(self), header.call_id, std::move(call)));
  return OkStatus();
}

// Clients keep to the limit as they see it, and a call leaves the table before its reply can be seen. Replies
// that wait for credits are bounded too, by the channel.
Status ServerLink::AddCall(uint64_t id) {
  std::lock_guard lock(mutex_);
  if (calls_.size() >= local().calls) {
    return ErrnoError(EPROTO, absl::StrFormat("more than the allowed %d calls at once", local().calls));
  }
  if (calls_.insert(id).second) return OkStatus();
  return ErrnoError(EPROTO, absl::StrFormat("call %#x is already in progress", id));
}

void ServerLink::RemoveCall(uint64_t id) {
  std::lock_guard lock(mutex_);
  calls_.erase(id);
}

void ServerLink::OnClosed(const Status& why) {
  if (why.code() == absl::StatusCode::kInvalidArgument) {
    LogWarning("data plane: closed the RDMA connection from %s: %s", client_, why.message());
  } else {
    LogDebug("data plane: the RDMA connection from %s has ended: %s", client_, why.message());
  }
  close_(why);
}

}  // namespace nacre::verbs
