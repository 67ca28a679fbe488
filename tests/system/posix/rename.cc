// rename, renameat2: every kind onto every kind, and what has to stay true afterwards.
#include <sys/syscall.h>
#include <unistd.h>

#include "check.h"

using namespace posix;

namespace {

enum Kind { kNothing, kFile, kEmptyDir, kFullDir, kLink, kFifo, kKinds };
const char* const kKindNames[] = {"nothing", "file", "empty directory", "full directory", "symlink", "fifo"};

void Make(Kind kind, const std::string& path) {
  switch (kind) {
    case kFile:
      return MakeFile(path, 0644, path);
    case kFullDir:
      MakeDir(path);
      return MakeFile(path + "/inside");
    case kEmptyDir:
      return MakeDir(path);
    case kLink:
      WORKS(symlink("nowhere", path.c_str()));
      return;
    case kFifo:
      WORKS(mkfifo(path.c_str(), 0644));
      return;
    default:
      return;
  }
}

bool IsDir(Kind kind) { return kind == kEmptyDir || kind == kFullDir; }

int Expected(Kind from, Kind to) {
  if (from == kNothing) return ENOENT;
  if (to == kNothing) return 0;
  if (IsDir(from) && !IsDir(to)) return ENOTDIR;
  if (!IsDir(from) && IsDir(to)) return EISDIR;
  return to == kFullDir ? ENOTEMPTY : 0;
}

ino_t Ino(const std::string& path) { return Exists(path) ? Stat(path).st_ino : 0; }

void ClearAway() { WORKS(system("rm -rf from to other")); }

}  // namespace

CASE("rename", "every kind onto every kind, within a directory and between two") {
  for (int from = kNothing; from < kKinds; ++from) {
    for (int to = kNothing; to < kKinds; ++to) {
      for (const char* destination : {"to", "other/to"}) {
        Context context(std::string(kKindNames[from]) + " onto " + kKindNames[to] + " as " + destination);
        MakeDir("other");
        Make(Kind(from), "from");
        Make(Kind(to), destination);
        const ino_t source = Ino("from"), target = Ino(destination);
        const int error = Expected(Kind(from), Kind(to));
        GIVES(error, rename("from", destination));
        EQUAL(Ino("from"), error ? source : 0);
        EQUAL(Ino(destination), error ? target : source);
        ClearAway();
      }
    }
  }
}

CASE("rename", "RENAME_NOREPLACE refuses every existing name and nothing else") {
  for (int from = kFile; from < kKinds; ++from) {
    for (int to = kNothing; to < kKinds; ++to) {
      Context context(std::string(kKindNames[from]) + " onto " + kKindNames[to]);
      Make(Kind(from), "from");
      Make(Kind(to), "to");
      GIVES(to == kNothing ? 0 : EEXIST, renameat2(AT_FDCWD, "from", AT_FDCWD, "to", RENAME_NOREPLACE));
      EQUAL(Exists("from"), to != kNothing);
      ClearAway();
    }
  }
}

CASE("rename", "RENAME_EXCHANGE swaps any two names") {
  for (int from = kNothing; from < kKinds; ++from) {
    for (int to = kNothing; to < kKinds; ++to) {
      Context context(std::string(kKindNames[from]) + " with " + kKindNames[to]);
      MakeDir("other");
      Make(Kind(from), "from");
      Make(Kind(to), "other/to");
      const ino_t source = Ino("from"), target = Ino("other/to");
      const bool both = from != kNothing && to != kNothing;
      GIVES(both ? 0 : ENOENT, renameat2(AT_FDCWD, "from", AT_FDCWD, "other/to", RENAME_EXCHANGE));
      EQUAL(Ino("from"), both ? target : source);
      EQUAL(Ino("other/to"), both ? source : target);
      ClearAway();
    }
  }
}

CASE("rename", "flags that exclude each other, and unknown ones") {
  MakeFile("a");
  MakeFile("b");
  GIVES(EINVAL, renameat2(AT_FDCWD, "a", AT_FDCWD, "b", RENAME_NOREPLACE | RENAME_EXCHANGE));
  GIVES(EINVAL, renameat2(AT_FDCWD, "a", AT_FDCWD, "b", 1u << 20));
}

CASE("rename", "a directory cannot go below itself") {
  MakeDir("a");
  MakeDir("a/b");
  MakeDir("a/b/c");
  GIVES(EINVAL, rename("a", "a/x"));
  GIVES(EINVAL, rename("a", "a/b/c/x"));
  GIVES(ENOTEMPTY, rename("a/b/c", "a"));
  GIVES(EINVAL, renameat2(AT_FDCWD, "a", AT_FDCWD, "a/b/c", RENAME_EXCHANGE));
  WORKS(rename("a/b/c", "c"));
}

CASE("rename", "dots, missing directories, and a name through a file") {
  MakeDir("dir");
  MakeFile("file");
  GIVES(EBUSY, rename("dir/.", "x"));
  GIVES(EBUSY, rename("dir/..", "x"));
  GIVES(EBUSY, rename("dir", "."));
  GIVES(ENOENT, rename("file", "missing/x"));
  GIVES(ENOENT, rename("missing/x", "file"));
  GIVES(ENOTDIR, rename("file/x", "y"));
  GIVES(ENOTDIR, rename("dir", "file/x"));
  GIVES(ENOTDIR, rename("file", "new/"));
  GIVES(ENOENT, rename("", "x"));
  WORKS(rename("dir", "renamed/"));
}

CASE("rename", "two names of one file: nothing happens, and both stay") {
  MakeFile("a");
  WORKS(link("a", "b"));
  WORKS(rename("a", "b"));
  CHECK(Exists("a") && Exists("b"));
  EQUAL(Stat("a").st_nlink, 2u);
  WORKS(rename("a", "a"));
  CHECK(Exists("a"));
}

CASE("rename", "link counts of the parents follow a directory") {
  MakeDir("p");
  MakeDir("q");
  MakeDir("p/sub");
  MakeDir("q/sub");
  EQUAL(Stat("p").st_nlink, 3u);
  WORKS(rename("p/sub", "q/sub"));
  EQUAL(Stat("p").st_nlink, 2u);
  EQUAL(Stat("q").st_nlink, 3u);
  WORKS(rename("q/sub", "p/sub"));
  EQUAL(Stat("p").st_nlink, 3u);
  EQUAL(Stat("q").st_nlink, 2u);
  MakeFile("file");
  WORKS(renameat2(AT_FDCWD, "p/sub", AT_FDCWD, "file", RENAME_EXCHANGE));
  EQUAL(Stat("p").st_nlink, 2u);
}

CASE("rename", "\"..\" of a moved directory is its new parent") {
  MakeDir("p");
  MakeDir("q");
  MakeDir("p/sub");
  WORKS(rename("p/sub", "q/sub"));
  EQUAL(Stat("q/sub/..").st_ino, Stat("q").st_ino);
  MakeDir("p/other");
  WORKS(renameat2(AT_FDCWD, "p/other", AT_FDCWD, "q/sub", RENAME_EXCHANGE));
  EQUAL(Stat("p/other/..").st_ino, Stat("p").st_ino);
  EQUAL(Stat("q/sub/..").st_ino, Stat("q").st_ino);
}

CASE("rename", "what is open survives being renamed over, and its name being taken") {
  MakeFile("old", 0644, "old");
  MakeFile("new", 0644, "new");
  Fd old_fd(open("old", O_RDWR)), new_fd(open("new", O_RDWR));
  WORKS(rename("new", "old"));
  EQUAL(Content("old"), "new");
  char buffer[3];
  EQUAL(pread(old_fd, buffer, 3, 0), 3);
  EQUAL(std::string(buffer, 3), "old");
  struct stat attr;
  WORKS(fstat(old_fd, &attr));
  EQUAL(attr.st_nlink, 0u);
  EQUAL(pwrite(new_fd, "NEW", 3, 0), 3);
  EQUAL(Content("old"), "NEW");
}

CASE("rename", "a file over a name that has other links takes one link from it") {
  MakeFile("a");
  MakeFile("b");
  WORKS(link("b", "b2"));
  WORKS(rename("a", "b"));
  EQUAL(Stat("b2").st_nlink, 1u);
}

CASE("rename", "a symbolic link itself is renamed and replaced, never what it points to") {
  MakeFile("target", 0644, "target");
  MakeFile("file", 0644, "file");
  WORKS(symlink("target", "link"));
  WORKS(rename("link", "moved"));
  CHECK(S_ISLNK(Stat("moved").st_mode));
  WORKS(rename("file", "moved"));
  CHECK(S_ISREG(Stat("moved").st_mode));
  EQUAL(Content("target"), "target");
}

CASE("rename", "the working directory may be renamed under its users") {
  MakeDir("dir");
  WORKS(chdir("dir"));
  WORKS(rename("../dir", "../moved"));
  MakeFile("file");
  CHECK(Exists("../moved/file"));
}

CASE("rename", "a chain of a hundred renames ends with one file") {
  MakeFile("0", 0644, "x");
  for (int i = 0; i < 100; ++i) WORKS(rename(std::to_string(i).c_str(), std::to_string(i + 1).c_str()));
  EQUAL(Names(".").size(), 1u);
  EQUAL(Content("100"), "x");
}
