#include "daemon/client_role.h"

#include <fstream>

#include "common/random.h"
#include "daemon/place.h"

namespace nacre {
namespace {

constexpr int kOomScore = -800;  // as in deploy/systemd/nacre-client@.service.in

// The end of this process loses what it has not sent yet, that of others does not: when memory is short, the
// kernel shall take them first. Only root may say so. A value that somebody has chosen stays.
void AskToBeSpared() {
  constexpr char kFile[] = "/proc/self/oom_score_adj";
  int chosen = 0;
  if (std::ifstream(kFile) >> chosen && chosen == 0) std::ofstream(kFile) << kOomScore;
}

}  // namespace

StatusOr<std::unique_ptr<ClientRole>> ClientRole::Start(Runtime& runtime, Transport& transport,
                                                        std::shared_ptr<MetadataConnector> metadata,
                                                        const ClientConfig& config) {
  RETURN_IF_ERROR(fuse::PrepareMountpoint(config.mount));  // before another client has to give way
  AskToBeSpared();
  ASSIGN_OR_RETURN(std::unique_ptr<PidFile> place, HoldPlace(config.mount));
  client::Environment environment{runtime.executor(), RealClock(), SystemRandom(), transport, metadata};
  client::Options client_options = config.options;
  client_options.replaces = place != nullptr && client_options.name == PlaceName(config.mount);
  ASSIGN_OR_RETURN(std::unique_ptr<client::FileSystem> filesystem,
                   runtime.Run(client::FileSystem::Mount(std::move(environment), client_options)));
  std::unique_ptr<ClientRole> role(new ClientRole(runtime, std::move(place), std::move(filesystem)));
  fuse::MountOptions options;
  options.mountpoint = config.mount;
  options.source = metadata->address();
  options.read_only = config.read_only;
  options.nosuid = config.nosuid;
  options.nodev = config.nodev;
  options.noexec = config.noexec;
  StatusOr<std::unique_ptr<fuse::Mount>> mount =
      fuse::Mount::Start(*role->filesystem_, runtime.executor(), std::move(options));
  if (!mount.ok()) {
    Status ended = runtime.Run(role->filesystem_->Unmount());
    (void)ended;  // nothing was written
    return mount.status();
  }
  role->mount_ = *std::move(mount);
  return role;
}

// Requests that keep the mount from ending wait for a server; others are sent to all the same, and the end of
// the filesystem ends those requests, too.
Status ClientRole::Stop() {
  Status off = mount_->Unmount();
  Status sent = runtime_.Run(filesystem_->Unmount());
  return sent.ok() ? off : sent;
}

}  // namespace nacre
