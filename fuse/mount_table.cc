// Finds what is mounted where, and unmounts it. Never touches the mountpoint itself: a dead or hanging mount
// would answer with an error or not at all.
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "fuse/mount.h"
#include "fuse/mountinfo.h"

namespace nacre::fuse {
namespace {

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

// Each line of /proc/PROCESS/mountinfo.
template <typename Function>
void ForEachMount(const std::string& process, Function each) {
  std::ifstream table("/proc/" + process + "/mountinfo");
  std::string line;
  while (std::getline(table, line)) {
    if (auto mount = ParseMountinfo(line)) {
      each(std::move(mount->mountpoint),
           MountEntry{std::move(mount->type), std::move(mount->source), std::move(mount->device)});
    }
  }
}

// Numbers and names of all processes that can be seen.
template <typename Function>
void ForEachProcess(Function each) {
  std::error_code error;
  for (std::filesystem::directory_iterator at("/proc", error), end; at != end; at.increment(error)) {
    int pid = 0;
    const std::string name = at->path().filename();
    if (!absl::SimpleAtoi(name, &pid)) continue;
    std::string program;
    std::ifstream("/proc/" + name + "/comm") >> program;
    each(MountUser{pid, program, ""});
    if (error) return;
  }
}

// A path that the process has open, runs or works in below the mountpoint; empty: none. Reading such a link
// does not ask the filesystem that it leads to.
std::string UsedPath(int pid, const std::string& mountpoint) {
  const std::string process = absl::StrCat("/proc/", pid);
  auto below = [&](const std::filesystem::path& link) {
    std::error_code error;
    const std::string target = std::filesystem::read_symlink(link, error);
    return !error && LiesBelow(target, mountpoint) ? target : std::string();
  };
  for (const char* link : {"/cwd", "/root", "/exe"}) {
    if (std::string found = below(process + link); !found.empty()) return found;
  }
  std::error_code error;
  for (std::filesystem::directory_iterator at(process + "/fd", error), end; !error && at != end;
       at.increment(error)) {
    if (std::string found = below(at->path()); !found.empty()) return found;
  }
  return "";
}

}  // namespace

std::vector<std::string> MountpointsOf(const std::string& source) {
  std::vector<std::string> found;
  ForEachMount("self", [&](std::string path, const MountEntry& entry) {
    if (entry.type == "fuse.nacre" && entry.source == source) found.push_back(std::move(path));
  });
  return found;
}

std::optional<MountUser> MountedElsewhere(const std::string& device) {
  std::optional<MountUser> found;
  ForEachProcess([&](MountUser process) {
    if (found) return;
    ForEachMount(std::to_string(process.pid), [&](const std::string& path, const MountEntry& entry) {
      if (entry.device != device || found) return;
      process.path = path;
      found = process;
    });
  });
  return found;
}

std::vector<MountUser> UsersOf(const std::string& mountpoint) {
  const std::string wanted = Canonical(mountpoint);
  std::vector<MountUser> users;
  ForEachProcess([&](MountUser process) {
    process.path = UsedPath(process.pid, wanted);
    if (!process.path.empty()) users.push_back(std::move(process));
  });
  return users;
}

StatusOr<MountEntry> FindMount(const std::string& mountpoint) {
  std::string wanted = Canonical(mountpoint);
  std::optional<MountEntry> found;
  ForEachMount("self", [&](std::string path, MountEntry entry) {
    if (path == wanted) found = std::move(entry);  // the last one lies on top
  });
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
