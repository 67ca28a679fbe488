#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "daemon/cli/command.h"
#include "daemon/cli/xattr.h"

namespace nacre::cli {
namespace {

constexpr char kSyncHelp[] =
    "Returns when everything that was changed on this mount before is on the servers' stable storage, files "
    "that are open included. sync(1) does not do that: the kernel tells a FUSE filesystem nothing of it. A "
    "file "
    "alone is synced by fsync(2), as on any filesystem.\n"
    "\n"
    "Examples:\n"
    "  nacre sync /mnt/nacre\n"
    "Exit status: 0 done, 1 something could not be written, or PATH lies on no Nacre mount; 2 wrong usage.";

int RunSync(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return Fail(ErrnoError(errno, path));
  const int pages = ::syncfs(fd);  // what programs have changed through mappings
  const int error = errno;
  ::close(fd);
  if (pages != 0) return Fail(ErrnoError(error, path));
  auto synced = ReadXattr(path, "nacre.sync");
  return synced.ok() ? kOk : Fail(synced.status());
}

}  // namespace

void AddSync(CLI::App& app, int* exit) {
  CLI::App* command = app.add_subcommand("sync", "Write what a mount holds back to stable storage");
  auto path = std::make_shared<std::string>(".");
  command->add_option("path", *path, "a path inside the mount; by default the working directory")
      ->type_name("PATH");
  command->footer(kSyncHelp);
  command->callback([=] { *exit = RunSync(*path); });
}

}  // namespace nacre::cli
