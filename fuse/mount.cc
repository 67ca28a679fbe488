#include "fuse/mount.h"

#include "common/log.h"
#include "fuse/session.h"

namespace nacre::fuse {

StatusOr<std::unique_ptr<Mount>> Mount::Start(client::FileSystem& filesystem, Executor executor,
                                              MountOptions options) {
  auto session = std::make_shared<Session>(filesystem, std::move(executor), std::move(options));
  RETURN_IF_ERROR(session->Start());
  return std::unique_ptr<Mount>(new Mount(std::move(session)));
}

Mount::Mount(std::shared_ptr<Session> session) : session_(std::move(session)) {}

Mount::~Mount() {
  Status status = Unmount();
  if (!status.ok()) LogError("%s", std::string(status.message()));
}

const OneShot<Unit>& Mount::ended() const { return session_->ended(); }

Status Mount::Unmount(Duration patience) {
  if (std::exchange(unmounted_, true)) return OkStatus();
  return session_->Stop(patience);
}

}  // namespace nacre::fuse
