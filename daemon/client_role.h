// One client with its mount: session, caches and FUSE, composed from a ClientConfig. Used by nacre-client and
// nacre local.
//
// Borrows the runtime and the transport. Main thread only; Start and Stop block. Errors name the address or
// mountpoint.
#pragma once

#include <memory>

#include "client/filesystem.h"
#include "common/runtime.h"
#include "daemon/background.h"
#include "daemon/config.h"
#include "fuse/mount.h"
#include "rpc/metadata_channel.h"
#include "transport/transport.h"

namespace nacre {

class ClientRole {
 public:
  // Opens the session and mounts. The config is finished (config.h). EBUSY if another process has a mount
  // there, or is still sending what was written to it.
  static StatusOr<std::unique_ptr<ClientRole>> Start(Runtime& runtime, Transport& transport,
                                                     std::shared_ptr<MetadataConnector> metadata,
                                                     const ClientConfig& config);

  // Arrives when the mount is gone.
  const OneShot<Unit>& ended() const { return mount_->ended(); }

  client::FileSystem& filesystem() { return *filesystem_; }

  // Takes the mount off, sends everything, ends the session: in bounded time, dead servers or not. An error
  // says what could not be sent, or (EBUSY) that requests were waiting for a server until the end; the
  // process can only exit then. Without it, the destructor drops what was not sent, as a crash would.
  Status Stop();

 private:
  ClientRole(Runtime& runtime, std::unique_ptr<PidFile> place, std::unique_ptr<client::FileSystem> filesystem)
      : runtime_(runtime), place_(std::move(place)), filesystem_(std::move(filesystem)) {}

  Runtime& runtime_;
  std::unique_ptr<PidFile> place_;  // until everything is with the servers
  std::unique_ptr<client::FileSystem> filesystem_;
  std::unique_ptr<fuse::Mount> mount_;
};

}  // namespace nacre
