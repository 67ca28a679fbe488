// Rights that a file gives to a process that runs it: setuid and setgid bits and file capabilities. They go
// with the first change of the file's content, and are never seen or used afterwards. And the users that may
// run a file at all.
#include <grp.h>
#include <linux/falloc.h>
#include <sys/sendfile.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "check.h"

using namespace posix;

namespace {

constexpr char kCapability[] = "security.capability";

// cap_setuid=ep, as setcap writes it (struct vfs_cap_data, revision 2).
const unsigned char kSetuidCapability[20] = {1, 0, 0, 2, 0x80};

// Each way to change what is in the file "file", as whoever calls. -1 and errno if it is refused.
struct Change {
  const char* name;
  int (*make)();
};

int WithFile(int flags, int (*change)(int file)) {
  Fd file(open("file", flags));
  return file < 0 ? -1 : change(file);
}

int WriteBlock(int file) {
  void* block = nullptr;
  if (posix_memalign(&block, 4096, 4096) != 0) return -1;
  memset(block, 'b', 4096);
  const int result = pwrite(file, block, 4096, 0) == 4096 ? 0 : -1;
  free(block);
  return result;
}

int WriteByte(int file) { return write(file, "b", 1) == 1 ? 0 : -1; }

const Change kChanges[] = {
    {"write", [] { return WithFile(O_WRONLY, WriteByte); }},
    {"append", [] { return WithFile(O_WRONLY | O_APPEND, WriteByte); }},
    {"O_DIRECT", [] { return WithFile(O_WRONLY | O_DIRECT, WriteBlock); }},
    {"O_DSYNC", [] { return WithFile(O_WRONLY | O_DSYNC, WriteByte); }},
    {"O_TRUNC", [] { return WithFile(O_WRONLY | O_TRUNC, [](int) { return 0; }); }},
    {"truncate", [] { return truncate("file", 10); }},
    {"ftruncate", [] { return WithFile(O_WRONLY, [](int file) { return ftruncate(file, 100000); }); }},
    {"fallocate", [] { return WithFile(O_WRONLY, [](int file) { return fallocate(file, 0, 0, 200000); }); }},
    {"punch",
     [] {
       return WithFile(O_WRONLY, [](int file) {
         return fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096);
       });
     }},
    {"copy_file_range",
     [] {
       return WithFile(O_WRONLY, [](int file) {
         Fd from(open("source", O_RDONLY));
         return copy_file_range(from, nullptr, file, nullptr, 5, 0) == 5 ? 0 : -1;
       });
     }},
};

// A file of `size` bytes that everybody may write.
void MakePrivileged(size_t size, mode_t mode) {
  unlink("file");
  MakeFile("file", 0777, std::string(size, 'a'));
  WORKS(chmod("file", mode));
}

int RunAs(const User& user, const char* path) {
  const pid_t child = fork();
  if (child == 0) {
    if (setgroups(0, nullptr) != 0 || setresgid(user.gid, user.gid, user.gid) != 0 ||
        setresuid(user.uid, user.uid, user.uid) != 0)
      _exit(99);
    execl(path, path, static_cast<char*>(nullptr));
    _exit(errno == EACCES ? 13 : 98);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

bool CopyProgram(const char* from, const char* to) {
  Fd in(open(from, O_RDONLY)), out(open(to, O_WRONLY | O_CREAT | O_TRUNC, 0700));
  struct stat attr;
  if (in < 0 || out < 0 || fstat(in, &attr) != 0) return false;
  for (off_t at = 0; at < attr.st_size;) {
    if (sendfile(out, in, &at, static_cast<size_t>(attr.st_size - at)) <= 0) return false;
  }
  return true;
}

}  // namespace

CASE("privileges", "setuid and setgid are gone at once when another has changed the file") {
  MakeFile("source", 0644, "other");
  for (size_t size : {20, 50'000}) {
    for (const Change& change : kChanges) {
      Context context(std::string(change.name) + ", " + std::to_string(size) + " bytes");
      MakePrivileged(size, 06777);
      EQUAL(Mode("file"), static_cast<mode_t>(06777));  // known to whoever keeps attributes
      {
        As user(kBob);
        WORKS(change.make());
      }
      EQUAL(Mode("file"), static_cast<mode_t>(0777));
    }
  }
}

CASE("privileges", "root's changes leave setuid and setgid") {
  MakeFile("source", 0644, "other");
  for (const Change& change : kChanges) {
    Context context(change.name);
    MakePrivileged(20, 06777);
    WORKS(change.make());
    EQUAL(Mode("file"), static_cast<mode_t>(06777));
  }
}

CASE("privileges", "setuid does not work for a program that another has just written to") {
  if (!CopyProgram("/usr/bin/true", "true") || !CopyProgram("/usr/bin/id", "file")) return;
  WORKS(chmod("file", 06777));
  CHECK(RunAs(kBob, "./file") == 0);
  const pid_t child = fork();
  if (child == 0) {
    if (setresgid(kBob.gid, kBob.gid, kBob.gid) != 0 || setresuid(kBob.uid, kBob.uid, kBob.uid) != 0)
      _exit(1);
    if (WithFile(O_WRONLY | O_APPEND, WriteByte) != 0) _exit(2);
    // id prints "euid=" only where it differs.
    _exit(system("./file | grep -q euid=") == 0 ? 3 : 0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EQUAL(WEXITSTATUS(status), 0);
}

CASE("privileges", "a capability is gone when anybody has changed the file, and nobody is kept from it") {
  MakeFile("source", 0644, "other");
  for (const User& who : {User{0, 0}, kBob}) {
    for (size_t size : {20, 50'000}) {
      for (const Change& change : kChanges) {
        Context context(std::string(change.name) + " by " + std::to_string(who.uid) + ", " +
                        std::to_string(size) + " bytes");
        MakePrivileged(size, 0777);
        WORKS(setxattr("file", kCapability, kSetuidCapability, sizeof kSetuidCapability, 0));
        WORKS(setxattr("file", "user.other", "x", 1, 0));
        {
          As user(who);
          WORKS(change.make());
        }
        char value[64];
        GIVES(ENODATA, getxattr("file", kCapability, value, sizeof value));
        EQUAL(getxattr("file", "user.other", value, sizeof value), static_cast<ssize_t>(1));
        EQUAL(listxattr("file", value, sizeof value), static_cast<ssize_t>(sizeof "user.other"));
        WORKS(setxattr("file", kCapability, kSetuidCapability, sizeof kSetuidCapability, 0));
        EQUAL(getxattr("file", kCapability, value, sizeof value), static_cast<ssize_t>(20));
      }
    }
  }
}

CASE("privileges", "a capability goes with a chown, and stays with chmod, rename and times") {
  MakePrivileged(20, 0777);
  WORKS(setxattr("file", kCapability, kSetuidCapability, sizeof kSetuidCapability, 0));
  char value[64];
  WORKS(chmod("file", 0755));
  WORKS(rename("file", "moved"));
  WORKS(rename("moved", "file"));
  WORKS(utimensat(AT_FDCWD, "file", nullptr, 0));
  EQUAL(getxattr("file", kCapability, value, sizeof value), static_cast<ssize_t>(20));
  WORKS(chown("file", 4001, 5001));
  GIVES(ENODATA, getxattr("file", kCapability, value, sizeof value));
  {
    As user(kAlice);
    GIVES(EPERM, setxattr("file", kCapability, kSetuidCapability, sizeof kSetuidCapability, 0));
    GIVES(EPERM, removexattr("file", kCapability));
  }
}

CASE("privileges", "a program is run by whoever may execute it, read or not") {
  if (!CopyProgram("/usr/bin/true", "true")) return;
  WORKS(chown("true", 4001, 5001));
  struct Row {
    mode_t mode;
    User user;
    int status;
  };
  const Row rows[] = {
      {0111, kAlice, 0}, {0111, kBob, 0},    {0100, kAlice, 0},  {0100, kBob, 13},   {0010, {4002, 5001}, 0},
      {0010, kBob, 13},  {0001, kBob, 0},    {0001, kAlice, 13}, {0444, kAlice, 13}, {0644, kBob, 13},
      {0755, kBob, 0},   {0000, {0, 0}, 13}, {0001, {0, 0}, 0},
  };
  for (const Row& row : rows) {
    Context context("mode " + std::to_string(row.mode) + " by " + std::to_string(row.user.uid));
    WORKS(chmod("true", row.mode));
    EQUAL(RunAs(row.user, "./true"), row.status);
  }
  WORKS(chmod("true", 0111));
  As user(kBob);
  GIVES(EACCES, open("true", O_RDONLY));
}
