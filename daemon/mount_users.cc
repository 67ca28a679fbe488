#include "daemon/mount_users.h"

#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

namespace nacre {
namespace {

namespace fs = std::filesystem;

constexpr size_t kNamed = 5;

bool LeadsInto(const fs::path& link, const std::string& mountpoint) {
  std::error_code error;
  const std::string target = fs::read_symlink(link, error);
  return target == mountpoint || absl::StartsWith(target, mountpoint + "/");
}

bool Uses(const fs::path& process, const std::string& mountpoint) {
  for (const char* link : {"cwd", "root", "exe"}) {
    if (LeadsInto(process / link, mountpoint)) return true;
  }
  std::error_code error;
  for (fs::directory_iterator it(process / "fd", error), end; !error && it != end; it.increment(error)) {
    if (LeadsInto(it->path(), mountpoint)) return true;
  }
  return false;
}

}  // namespace

std::vector<MountUser> FindMountUsers(const std::string& mountpoint) {
  std::vector<MountUser> users;
  std::error_code error;
  for (fs::directory_iterator it("/proc", error), end; !error && it != end; it.increment(error)) {
    MountUser user;
    if (!absl::SimpleAtoi(it->path().filename().string(), &user.pid) || !Uses(it->path(), mountpoint))
      continue;
    std::ifstream(it->path() / "comm") >> user.program;
    users.push_back(std::move(user));
  }
  std::sort(users.begin(), users.end(), [](const MountUser& a, const MountUser& b) { return a.pid < b.pid; });
  return users;
}

std::string Describe(const std::vector<MountUser>& users) {
  std::string text;
  for (size_t i = 0; i < users.size() && i < kNamed; ++i) {
    absl::StrAppend(&text, i == 0 ? "" : ", ", users[i].pid, " (", users[i].program, ")");
  }
  if (users.size() > kNamed) absl::StrAppend(&text, " and ", users.size() - kNamed, " more");
  return text;
}

}  // namespace nacre
