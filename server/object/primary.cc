// Which MDS an OSS obeys, where there are several (docs/decisions/0066-copies-of-the-mdt.md).
#include <cerrno>

#include "common/log.h"
#include "server/object/server_core.h"

namespace nacre::ost {
namespace {

Status AsOfAnswer(Status status) {
  return ToErrno(status) == ESTALE ? ErrnoError(ENOTCONN, std::string(status.message())) : status;
}

}  // namespace

Status HearOfPrimary(ServerCore& core, uint64_t mdt_epoch) {
  for (Target& target : core.targets) RETURN_IF_ERROR(target.sessions->HearOf(mdt_epoch));
  return OkStatus();
}

Task<Status> ObeyPrimary(std::shared_ptr<ServerCore> core, uint64_t mdt_epoch, const Target* asked) {
  if (mdt_epoch == 0) co_return OkStatus();
  bool obeyed = false;
  Status failure = OkStatus();
  CO_RETURN_IF_ERROR(HearOfPrimary(*core, mdt_epoch));
  for (Target& target : core->targets) {
    Status status = co_await target.sessions->Obey(mdt_epoch);
    if (ToErrno(status) == ESTALE) co_return status;  // of one that came meanwhile
    obeyed |= status.ok();
    if (status.ok()) continue;
    LogWarning("OST %d: that the MDS of epoch %d is the primary could not be stored: %s",
               target.store->superblock().index, mdt_epoch, std::string(status.message()));
    if (asked == nullptr || asked == &target) failure = status;
  }
  co_return asked == nullptr&& obeyed ? OkStatus() : failure;
}

Task<Status> CheckAnswer(std::shared_ptr<ServerCore> core, uint64_t mdt_epoch) {
  Status status = co_await ObeyPrimary(std::move(core), mdt_epoch, nullptr);
  co_return AsOfAnswer(std::move(status));
}

Status CheckMdtEpoch(ServerCore& core, uint64_t mdt_epoch) {
  return AsOfAnswer(HearOfPrimary(core, mdt_epoch));
}

}  // namespace nacre::ost
