// Where this process is: which boot of which machine, and which mountpoint. A client has its place alone, and
// keeps a file for it (/run/nacre/client-srv-data.pid for /srv/data; below XDG_RUNTIME_DIR for others than
// root), by which `nacre umount` finds it.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

#include "common/status.h"
#include "daemon/background.h"

namespace nacre {

// This boot of the machine (common/host.h); where the kernel does not say, another one with each call, which
// is the careful answer.
std::string BootName();

std::string HostName();

// The name by which the MDS knows a client at this mountpoint: host, mountpoint, boot, and what tells
// containers of one host apart.
std::string PlaceName(const std::string& mountpoint);

std::string PlaceFile(const std::string& mountpoint);

// EBUSY if a living process has a mount there; the message names it. One that has been unmounted and is still
// sending what was written is waited for. Null if no such file can be made here: then nobody can tell.
StatusOr<std::unique_ptr<PidFile>> HoldPlace(const std::string& mountpoint);

// Keeps what this process could not write back before it ends beside the file of the place, for nacre umount.
void LeaveLastWords(const std::string& mountpoint, const std::string& message);
// Returns what that client of this place has left, and takes it away. Empty: nothing.
std::string TakeLastWords(const std::string& mountpoint, pid_t client);

}  // namespace nacre
