// Permissions: mode bits, ownership, sticky directories, setuid and setgid, supplementary groups.
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

using namespace posix;

namespace {

// A file of kAlice's seen by its four kinds of users.
struct Class {
  const char* name;
  User user;
  int shift;  // of the mode bits that count for it
};
const Class kClasses[] = {
    {"owner", {4001, 5999}, 6},
    {"group", {4002, 5001}, 3},
    {"supplementary group", {4002, 5002, {5003, 5001}}, 3},
    {"other", {4003, 5003}, 0},
};

int OpenAndClose(const std::string& path, int flags) {
  int fd = open(path.c_str(), flags);
  return fd < 0 ? -1 : close(fd);
}

}  // namespace

CASE("permissions", "open follows exactly the bits of the caller's class") {
  MakeFile("file");
  Give("file", kAlice);
  for (const Class& who : kClasses) {
    for (mode_t bits = 0; bits < 8; ++bits) {
      // All other classes get the opposite: only the caller's own may count.
      mode_t mode = (0777 & ~(7 << who.shift)) | (bits << who.shift);
      Context context(std::string(who.name) + " with mode bits " + std::to_string(bits));
      WORKS(chmod("file", mode));
      As user(who.user);
      GIVES(bits & 4 ? 0 : EACCES, OpenAndClose("file", O_RDONLY));
      GIVES(bits & 2 ? 0 : EACCES, OpenAndClose("file", O_WRONLY));
      GIVES((bits & 6) == 6 ? 0 : EACCES, OpenAndClose("file", O_RDWR));
      GIVES(bits & 2 ? 0 : EACCES, truncate("file", 0));
      GIVES(bits & 4 ? 0 : EACCES, access("file", R_OK));
      GIVES(bits & 2 ? 0 : EACCES, access("file", W_OK));
      GIVES(bits & 1 ? 0 : EACCES, access("file", X_OK));
    }
  }
}

CASE("permissions", "a directory wants write and search to change, search to look up, read to list") {
  MakeDir("dir");
  MakeFile("dir/there", 0666);
  Give("dir", kAlice);
  for (const Class& who : kClasses) {
    for (mode_t bits = 0; bits < 8; ++bits) {
      Context context(std::string(who.name) + " with mode bits " + std::to_string(bits));
      WORKS(chmod("dir", (0777 & ~(7 << who.shift)) | (bits << who.shift)));
      const int change = (bits & 3) == 3 ? 0 : EACCES, look = bits & 1 ? 0 : EACCES;
      As user(who.user);
      struct stat attr;
      GIVES(look, stat("dir/there", &attr));
      GIVES(bits & 1 ? ENOENT : EACCES, stat("dir/missing", &attr));
      GIVES(bits & 4 ? 0 : EACCES, OpenAndClose("dir", O_RDONLY | O_DIRECTORY));
      GIVES(look, chdir("dir") == 0 ? chdir("..") : -1);
      GIVES(change, mkdir("dir/new", 0755));
      GIVES(change, change ? mkdir("dir/new", 0755) : rmdir("dir/new"));
      GIVES(change, OpenAndClose("dir/new", O_CREAT | O_WRONLY));
      GIVES(change, change ? unlink("dir/there") : unlink("dir/new"));
      GIVES(change, symlink("target", "dir/new"));
      GIVES(change, change ? rename("dir/there", "dir/new") : rename("dir/new", "dir/newer"));
      GIVES(change, change ? link("dir/there", "dir/new") : unlink("dir/newer"));
      GIVES(change, mkfifo("dir/new", 0644));
      GIVES(change, change ? unlink("dir/there") : unlink("dir/new"));
    }
  }
}

CASE("permissions", "root passes every bit but execution of what nobody may execute") {
  MakeFile("file", 0);
  MakeDir("dir", 0);
  Give("file", kAlice);
  Give("dir", kAlice);
  WORKS(OpenAndClose("file", O_RDWR));
  WORKS(mkdir("dir/sub", 0));
  WORKS(access("file", R_OK | W_OK));
  GIVES(EACCES, access("file", X_OK));
  WORKS(access("dir", R_OK | W_OK | X_OK));
  WORKS(chmod("file", 0100));
  WORKS(access("file", X_OK));
}

CASE("permissions", "chmod is for the owner and root") {
  MakeFile("file");
  MakeDir("dir");
  Give("file", kAlice);
  Give("dir", kAlice);
  for (const char* path : {"file", "dir"}) {
    Context context(path);
    for (mode_t mode : {0, 0111, 0600, 0644, 0755, 0777}) {
      {
        As user(kAlice);
        WORKS(chmod(path, mode));
      }
      EQUAL(Mode(path), mode);
    }
    As user(kBob);
    GIVES(EPERM, chmod(path, 0777));
  }
  MakeFile("shared", 0666);
  As user(kBob);
  GIVES(EPERM, chmod("shared", 0644));
  GIVES(ENOENT, chmod("missing", 0644));
}

CASE("permissions", "chown: root to anyone, the owner to a group of his own, others not at all") {
  MakeFile("file");
  WORKS(chown("file", 4001, 5001));
  EQUAL(Stat("file").st_uid, 4001u);
  EQUAL(Stat("file").st_gid, 5001u);
  WORKS(chown("file", -1, 5002));
  EQUAL(Stat("file").st_uid, 4001u);
  EQUAL(Stat("file").st_gid, 5002u);
  WORKS(chown("file", 4001, -1));
  EQUAL(Stat("file").st_gid, 5002u);
  {
    As user({4001, 5001, {5005}});
    WORKS(chown("file", -1, 5001));
    WORKS(chown("file", -1, 5005));
    WORKS(chown("file", 4001, 5001));
    GIVES(EPERM, chown("file", -1, 5006));
    GIVES(EPERM, chown("file", 4002, -1));
    GIVES(EPERM, chown("file", 0, 0));
  }
  As user(kBob);
  GIVES(EPERM, chown("file", -1, 5002));
  GIVES(EPERM, chown("file", 4002, 5002));
}

CASE("permissions", "lchown changes the link, chown what it points to") {
  MakeFile("file");
  WORKS(symlink("file", "link"));
  WORKS(lchown("link", 4001, 5001));
  EQUAL(Stat("file").st_uid, 0u);
  EQUAL(Stat("link").st_uid, 4001u);
  WORKS(chown("link", 4002, 5002));
  EQUAL(Stat("file").st_uid, 4002u);
  EQUAL(Stat("link").st_uid, 4001u);
}

CASE("permissions", "a chown takes setuid and setgid from an executable, not from a directory") {
  struct Row {
    mode_t before, after;
  };
  for (Row row :
       {Row{06755, 0755}, {04755, 0755}, {02755, 0755}, {04644, 0644}, {02644, 02644}, {01755, 01755}}) {
    MakeFile("file", row.before);
    Context context("mode " + std::to_string(row.before));
    WORKS(chown("file", 4001, 5001));
    EQUAL(Mode("file"), row.after);
    WORKS(unlink("file"));
  }
  MakeDir("dir", 06755);
  WORKS(chown("dir", 4001, 5001));
  EQUAL(Mode("dir"), static_cast<mode_t>(06755));
}

CASE("permissions", "a write or truncate by someone else takes setuid and setgid away") {
  struct Row {
    mode_t before, after;
  };
  for (Row row : {Row{04777, 0777}, {02777, 0777}, {06777, 0777}, {01777, 01777}}) {
    Context context("mode " + std::to_string(row.before));
    MakeFile("written", row.before, "content");
    MakeFile("truncated", row.before, "content");
    {
      As user(kBob);
      Fd fd(open("written", O_WRONLY));
      WORKS(fd);
      WORKS(write(fd, "x", 1));
      WORKS(truncate("truncated", 1));
    }
    EQUAL(Mode("written"), row.after);
    EQUAL(Mode("truncated"), row.after);
    WORKS(unlink("written"));
    WORKS(unlink("truncated"));
  }
}

CASE("permissions", "chmod by an owner outside of the group drops setgid") {
  MakeFile("file");
  WORKS(chown("file", 4001, 5009));
  As user(kAlice);
  WORKS(chmod("file", 02755));
  EQUAL(Mode("file"), static_cast<mode_t>(0755));
  WORKS(chmod("file", 04755));
  EQUAL(Mode("file"), static_cast<mode_t>(04755));
}

CASE("permissions", "a setgid directory hands its group down, and itself to directories") {
  MakeDir("dir", 02777);
  WORKS(chown("dir", 0, 5009));
  {
    As user(kAlice);
    MakeFile("dir/file");
    WORKS(mkdir("dir/sub", 0755));
    WORKS(symlink("x", "dir/link"));
    WORKS(mkfifo("dir/fifo", 0600));
  }
  for (const char* path : {"dir/file", "dir/sub", "dir/link", "dir/fifo"}) {
    Context context(path);
    EQUAL(Stat(path).st_uid, 4001u);
    EQUAL(Stat(path).st_gid, 5009u);
  }
  EQUAL(Mode("dir/sub"), static_cast<mode_t>(02755));
  EQUAL(Mode("dir/file"), static_cast<mode_t>(0644));
}

CASE("permissions", "what is made belongs to the effective user and group of its maker") {
  As user({4001, 5001, {5003}});
  MakeFile("file");
  MakeDir("dir");
  WORKS(symlink("x", "link"));
  for (const char* path : {"file", "dir", "link"}) {
    Context context(path);
    EQUAL(Stat(path).st_uid, 4001u);
    EQUAL(Stat(path).st_gid, 5001u);
  }
}

CASE("permissions", "umask takes bits from what is made and from nothing else") {
  for (mode_t mask : {0, 022, 027, 077, 0777}) {
    Context context("umask " + std::to_string(mask));
    umask(mask);
    WORKS(mkdir("dir", 0777));
    Fd fd(open("file", O_CREAT | O_EXCL | O_WRONLY, 0666));
    WORKS(fd);
    WORKS(mkfifo("fifo", 0666));
    EQUAL(Mode("dir"), 0777 & ~mask);
    EQUAL(Mode("file"), 0666 & ~mask);
    EQUAL(Mode("fifo"), 0666 & ~mask);
    WORKS(chmod("file", 0777));
    EQUAL(Mode("file"), static_cast<mode_t>(0777));
    umask(0);
    WORKS(rmdir("dir"));
    WORKS(unlink("file"));
    WORKS(unlink("fifo"));
  }
}

CASE("permissions", "the mode given to a create does not limit the descriptor that it returns") {
  As user(kAlice);
  Fd fd(open("file", O_CREAT | O_EXCL | O_RDWR, 0));
  WORKS(fd);
  EQUAL(write(fd, "abc", 3), 3);
  char buffer[3];
  EQUAL(pread(fd, buffer, 3, 0), 3);
  WORKS(ftruncate(fd, 1));
  GIVES(EACCES, OpenAndClose("file", O_RDONLY));
}

CASE("permissions", "a descriptor keeps its rights when the mode changes") {
  MakeFile("file", 0666, "content");
  As user(kBob);
  Fd fd(open("file", O_RDWR));
  WORKS(fd);
  {
    InChild([] { return setresuid(0, 0, 0) == 0 && chmod("file", 0) == 0; });
  }
  char buffer[7];
  EQUAL(pread(fd, buffer, 7, 0), 7);
  EQUAL(pwrite(fd, "C", 1, 0), 1);
  WORKS(ftruncate(fd, 3));
  GIVES(EACCES, OpenAndClose("file", O_RDONLY));
}

CASE("permissions", "utimensat: explicit times for the owner, the present for whoever may write") {
  MakeFile("file", 0666);
  Give("file", kAlice);
  const timespec past[2] = {{1000, 1}, {2000, 2}}, omit[2] = {{0, UTIME_OMIT}, {0, UTIME_OMIT}};
  {
    As user(kAlice);
    WORKS(utimensat(AT_FDCWD, "file", past, 0));
    WORKS(utimensat(AT_FDCWD, "file", nullptr, 0));
  }
  {
    As user(kBob);
    GIVES(EPERM, utimensat(AT_FDCWD, "file", past, 0));
    WORKS(utimensat(AT_FDCWD, "file", nullptr, 0));
    WORKS(utimensat(AT_FDCWD, "file", omit, 0));
  }
  WORKS(chmod("file", 0644));
  As user(kBob);
  GIVES(EACCES, utimensat(AT_FDCWD, "file", nullptr, 0));
  GIVES(EPERM, utimensat(AT_FDCWD, "file", past, 0));
}

// Each row is a caller that tries to take an entry out of a directory, with the owners of both and the error.
CASE("sticky", "only root, the owner of the directory and the owner of the entry may remove or rename it") {
  struct Row {
    const char* name;
    User directory_owner, entry_owner, caller;
    int error;
  };
  const User nobody{4009, 5009};
  const Row rows[] = {
      {"the entry's owner", nobody, kAlice, kAlice, 0},
      {"the directory's owner", kAlice, nobody, kAlice, 0},
      {"a stranger", nobody, kBob, kAlice, EPERM},
      {"the owner of both", kAlice, kAlice, kAlice, 0},
  };
  for (const Row& row : rows) {
    Context context(row.name);
    MakeDir("dir", 01777);
    for (const char* name : {"dir/file", "dir/target", "dir/other"}) {
      MakeFile(name);
      Give(name, row.entry_owner);
    }
    MakeDir("dir/sub");
    Give("dir/sub", row.entry_owner);
    Give("dir", row.directory_owner);
    {
      As user(row.caller);
      GIVES(row.error, rmdir("dir/sub"));
      GIVES(row.error, rename("dir/file", "dir/renamed"));
      MakeFile("dir/mine");
      GIVES(row.error, rename("dir/mine", "dir/target"));
      GIVES(row.error, unlink("dir/other"));
    }
    WORKS(system("rm -rf dir") == 0 ? 0 : -1);
  }
}

CASE("sticky", "renaming a directory out of a sticky one wants the same right") {
  MakeDir("sticky", 01777);
  MakeDir("open", 0777);
  MakeDir("sticky/sub", 0777);
  Give("sticky/sub", kAlice);
  {
    As user(kBob);
    GIVES(EPERM, rename("sticky/sub", "open/sub"));
  }
  As user(kAlice);
  WORKS(rename("sticky/sub", "open/sub"));
}

CASE("permissions", "a directory moves to another parent only if the caller may write it") {
  MakeDir("from", 0777);
  MakeDir("to", 0777);
  MakeDir("from/sub", 0755);
  {
    As user(kAlice);
    GIVES(EACCES, rename("from/sub", "to/sub"));
    WORKS(rename("from/sub", "from/renamed"));
  }
  WORKS(chmod("from/renamed", 0757));
  As user(kAlice);
  WORKS(rename("from/renamed", "to/sub"));
}

CASE("permissions", "O_TRUNC wants write permission, and leaves the content where there is none") {
  MakeFile("file", 0444, "content");
  {
    As user(kAlice);
    GIVES(EACCES, OpenAndClose("file", O_WRONLY | O_TRUNC));
    GIVES(EACCES, OpenAndClose("file", O_RDONLY | O_TRUNC));
  }
  EQUAL(Content("file"), "content");
}

CASE("permissions", "search permission is asked of every directory of a path") {
  MakeDir("a");
  MakeDir("a/b");
  MakeDir("a/b/c");
  MakeFile("a/b/c/file", 0666);
  for (const char* closed : {"a", "a/b", "a/b/c"}) {
    Context context(closed);
    WORKS(chmod(closed, 0766));
    {
      As user(kAlice);
      GIVES(EACCES, OpenAndClose("a/b/c/file", O_RDONLY));
      GIVES(EACCES, truncate("a/b/c/file", 0));
      GIVES(EACCES, chmod("a/b/c/file", 0));
      GIVES(EACCES, unlink("a/b/c/file"));
    }
    WORKS(chmod(closed, 0755));
  }
}
