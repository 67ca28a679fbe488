// nacre-client and nacre mount: a client in a process of its own, and nacre umount, which ends it.
// Main thread only; the functions return the exit status for main.
#pragma once

#include <string>

#include "daemon/config.h"

namespace nacre {

struct ClientDaemonOptions {
  ClientConfig config;  // finished
  bool background = false;
  bool make_mountpoint = false;  // if it is missing, 0755
  std::string pid_file;          // besides the one of its place (place.h); empty: none
  std::string log_file;          // in the background; empty: /var/log/nacre/client-MOUNTPOINT.log
};

// Serves until SIGTERM, SIGINT or an unmount.
int RunClientDaemon(ClientDaemonOptions options);

// Takes the mount off and waits until its daemon has sent everything. `lazy`: although files are open on it.
int UnmountClient(const std::string& mountpoint, bool lazy);

}  // namespace nacre
