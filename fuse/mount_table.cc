// What is mounted where, and taking it off. Never touches the mountpoint itself: a dead or hanging mount
// would answer with an error or not at all.
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <absl/strings/numbers.h>
#include <absl/strings/str_split.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "fuse/mount.h"

namespace nacre::fuse {
namespace {

// Undoes the kernel's octal escapes of blank, tab, newline and backslash.
std::string Unescape(std::string_view field) {
  std::string out;
  for (size_t i = 0; i < field.size(); ++i) {
    if (field[i] == '\\' && i + 3 < field.size()) {
      out.push_back(
          static_cast<char>((field[i + 1] - '0') * 64 + (field[i + 2] - '0') * 8 + (field[i + 3] - '0')));
      i += 3;
    } else {
      out.push_back(field[i]);
    }
  }
  return out;
}

// The mountpoint without "." and "..", as the kernel shows it; does not look at the last component.
std::string Canonical(const std::string& path) {
  std::string trimmed = path;
  while (trimmed.size() > 1 && trimmed.back() == '/') trimmed.pop_back();
  size_t slash = trimmed.rfind('/');
  std::string parent = slash == std::string::npos ? "." : slash == 0 ? "/" : trimmed.substr(0, slash);
  std::string name = slash == std::string::npos ? trimmed : trimmed.substr(slash + 1);
  char* real = ::realpath(parent.c_str(), nullptr);
  if (real == nullptr) return trimmed;
  std::string out(real);
  ::free(real);
  if (name.empty() || name == ".") return out;
  if (out != "/") out += '/';
  return out + name;
}

Status RunFusermount(const std::string& mountpoint, bool lazy) {
  pid_t child = ::fork();
  if (child < 0) return ErrnoError(errno, "cannot fork to run fusermount3");
  if (child == 0) {
    ::execlp("fusermount3", "fusermount3", lazy ? "-uqz" : "-uq", "--", mountpoint.c_str(), nullptr);
    ::_exit(127);
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return OkStatus();
  if (WIFEXITED(status) && WEXITSTATUS(status) == 127) {
    return ErrnoError(
        EPERM,
        absl::StrFormat("%s: only root can unmount it without fusermount3 (package fuse3)", mountpoint));
  }
  return ErrnoError(
      EBUSY,
      absl::StrFormat("%s: fusermount3 could not unmount it; is a program still using it (fuser -m %s)?",
                      mountpoint, mountpoint));
}

}  // namespace

StatusOr<MountEntry> FindMount(const std::string& mountpoint) {
  std::string wanted = Canonical(mountpoint);
  std::ifstream table("/proc/self/mountinfo");
  std::string line;
  std::optional<MountEntry> found;
  while (std::getline(table, line)) {
    std::vector<std::string> fields = absl::StrSplit(line, ' ');
    auto dash = std::find(fields.begin(), fields.end(), "-");
    if (fields.size() < 6 || fields.end() - dash < 3) continue;
    if (Unescape(fields[4]) != wanted) continue;
    found = MountEntry{Unescape(dash[1]), Unescape(dash[2]), fields[2]};  // the last one lies on top
  }
  if (!found) return ErrnoError(ENOENT, absl::StrFormat("%s: nothing is mounted there", mountpoint));
  return *found;
}

Status UnmountPath(const std::string& mountpoint, bool lazy) {
  ASSIGN_OR_RETURN(MountEntry entry, FindMount(mountpoint));
  if (entry.type != "fuse.nacre") {
    return ErrnoError(EINVAL, absl::StrFormat("%s: a file system of type %s is mounted there, not Nacre",
                                              mountpoint, entry.type));
  }
  std::string path = Canonical(mountpoint);
  if (::umount2(path.c_str(), UMOUNT_NOFOLLOW | (lazy ? MNT_DETACH : 0)) == 0) return OkStatus();
  if (errno == EPERM) return RunFusermount(path, lazy);
  if (errno == EBUSY) {
    return ErrnoError(
        EBUSY, absl::StrFormat("%s: a program is still using it (see fuser -m %s)", mountpoint, mountpoint));
  }
  return ErrnoError(errno, absl::StrFormat("%s: cannot unmount: %s", mountpoint, std::strerror(errno)));
}

}  // namespace nacre::fuse
