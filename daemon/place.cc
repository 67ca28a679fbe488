#include "daemon/place.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_replace.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "common/host.h"
#include "common/log.h"
#include "common/random.h"
#include "daemon/directory.h"
#include "fuse/mount.h"

namespace nacre {
namespace {

constexpr int kPatienceTenths = 1200;  // of a second

// Mounts of one name in different mount namespaces are different places, also if the namespaces share the
// host's name.
std::string MountNamespace() {
  struct stat own, first;
  if (::stat("/proc/self/ns/mnt", &own) != 0 || ::stat("/proc/1/ns/mnt", &first) != 0) return "";
  return own.st_ino == first.st_ino ? "" : absl::StrFormat(".%d", own.st_ino);
}

std::string RuntimeDirectory() {
  const char* own = ::geteuid() == 0 ? nullptr : std::getenv("XDG_RUNTIME_DIR");
  return own == nullptr ? "/run/nacre" : absl::StrCat(own, "/nacre");
}

// "srv-data" for /srv/data.
std::string FileName(const std::string& mountpoint) {
  std::error_code error;
  std::string path = std::filesystem::absolute(mountpoint, error).lexically_normal();
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return absl::StrReplaceAll(path.substr(1), {{"-", "--"}, {"/", "-"}});
}

std::string LastWordsFile(const std::string& mountpoint, pid_t client) {
  return absl::StrCat(RuntimeDirectory(), "/client-", FileName(mountpoint), ".lost.", client);
}

}  // namespace

std::string HostName() {
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  return name;
}

std::string BootName() {
  StatusOr<std::string> boot = BootId();
  return boot.ok() ? *std::move(boot) : absl::StrFormat("%016x", SystemRandom().Next());
}

std::string PlaceName(const std::string& mountpoint) {
  return absl::StrFormat("%s:%s@%s%s", HostName(), mountpoint, BootName().substr(0, 8), MountNamespace());
}

std::string PlaceFile(const std::string& mountpoint) {
  return absl::StrCat(RuntimeDirectory(), "/client-", FileName(mountpoint), ".pid");
}

void LeaveLastWords(const std::string& mountpoint, const std::string& message) {
  const std::string path = LastWordsFile(mountpoint, ::getpid());
  std::ofstream file(path, std::ios::trunc);
  file << message << std::flush;
  if (!file) LogWarning("cannot write %s: nacre umount will not tell of this", path);
}

std::string TakeLastWords(const std::string& mountpoint, pid_t client) {
  const std::string path = LastWordsFile(mountpoint, client);
  std::ifstream file(path);
  std::string message((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  ::unlink(path.c_str());
  return message;
}

StatusOr<std::unique_ptr<PidFile>> HoldPlace(const std::string& mountpoint) {
  const std::string file = PlaceFile(mountpoint);
  Status status = MakeDirectories(std::filesystem::path(file).parent_path());
  for (int tenths = 0; status.ok(); ++tenths) {
    StatusOr<std::unique_ptr<PidFile>> held = PidFile::Hold(file);
    if (held.ok()) {
      ::unlink(LastWordsFile(mountpoint, ::getpid()).c_str());  // of an earlier process of this number
      return held;
    }
    status = held.status();
    if (ToErrno(status) != EBUSY) break;
    if (tenths == kPatienceTenths || fuse::FindMount(mountpoint).ok()) return status;
    if (tenths == 0) LogInfo("%s: waiting for the client of before, which is still sending", mountpoint);
    ::usleep(100'000);
    status = OkStatus();
  }
  LogWarning("%s: nacre umount will not find this client, and after a crash the next one may have to wait",
             std::string(status.message()));
  return std::unique_ptr<PidFile>();
}

}  // namespace nacre
