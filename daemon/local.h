// nacre local: every role in one process, and nacre stop, which ends it.
//
// The directory holds mdt/, ost.0/, ost.1/, …, log/local.log, local.pid, and the unix sockets mds.sock
// (metadata and status; any command takes it by --dir) and oss.sock (data). Main thread only; the functions
// return the exit status for main.
#pragma once

#include <cstdint>
#include <string>

#include "common/status.h"

namespace nacre {

struct LocalOptions {
  std::string directory;
  std::string mountpoint;
  uint32_t osts = 1;                 // a directory that has OSTs keeps their number
  uint64_t ost_bytes = 0;            // of a new OST; 0: what the disk has free, shared among them
  uint64_t cache_bytes = 256 << 20;  // of the client
  bool background = false;
};

// Serves until SIGTERM, SIGINT or an unmount.
int RunLocal(LocalOptions options);

// Ends the process of RunLocal and waits for it.
int StopLocal(const std::string& directory);

// unix:DIR/mds.sock
std::string LocalMdsAddress(const std::string& directory);

}  // namespace nacre
