// Names, paths and symbolic links: lengths, bytes, dots, slashes, loops.
#include <unistd.h>

#include <algorithm>

#include "check.h"

using namespace posix;

namespace {

// "./././…name" of exactly `length` bytes.
std::string PathOfLength(size_t length, const std::string& name) {
  std::string path = (length - name.size()) % 2 ? ".//" : "";
  while (path.size() + 2 + name.size() <= length) path += "./";
  return path + name;
}

int Touch(const std::string& path) {
  int fd = open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY, 0644);
  return fd < 0 ? -1 : close(fd);
}

}  // namespace

CASE("names", "up to 255 bytes, and not one more, for whatever takes a name") {
  for (size_t length : {1, 2, 100, 254, 255, 256, 300, 1000}) {
    Context context(std::to_string(length) + " bytes");
    const std::string name(length, 'n');
    const int error = length <= 255 ? 0 : ENAMETOOLONG;
    GIVES(error, Touch(name));
    struct stat attr;
    GIVES(error, stat(name.c_str(), &attr));
    GIVES(error, rename(name.c_str(), (name.substr(1) + "x").c_str()));
    GIVES(error, unlink((name.substr(1) + "x").c_str()));
    GIVES(error, mkdir(name.c_str(), 0755));
    GIVES(error, rmdir(name.c_str()));
    GIVES(error, symlink("x", name.c_str()));
    char target[8];
    GIVES(error, readlink(name.c_str(), target, sizeof(target)));
    GIVES(error, unlink(name.c_str()));
    GIVES(error, mkfifo(name.c_str(), 0644));
    GIVES(error, unlink(name.c_str()));
  }
}

CASE("names", "any byte but slash and NUL, alone and inside") {
  std::vector<std::string> made;
  for (int byte = 1; byte < 256; ++byte) {
    if (byte == '/' || byte == '.') continue;
    Context context("byte " + std::to_string(byte));
    for (const std::string& name : {std::string(1, byte), "a" + std::string(2, byte) + "z"}) {
      WORKS(Touch(name));
      CHECK(Exists(name));
      made.push_back(name);
    }
  }
  std::sort(made.begin(), made.end());
  CHECK(Names(".") == made);
}

CASE("names", "case, trailing spaces, leading dashes and dots make different names") {
  for (const char* name : {"name", "Name", "NAME", "name ", " name", "-name", ".name", "name.", "..name",
                           "...", "\xc3\xa9", "e\xcc\x81"}) {
    Context context(name);
    WORKS(Touch(name));
  }
  EQUAL(Names(".").size(), 12u);
}

CASE("names", "a path may have 4095 bytes") {
  WORKS(Touch(PathOfLength(4095, "file")));
  struct stat attr;
  WORKS(stat(PathOfLength(4095, "file").c_str(), &attr));
  GIVES(ENAMETOOLONG, stat(PathOfLength(4096, "file").c_str(), &attr));
  GIVES(ENAMETOOLONG, mkdir(PathOfLength(4096, "dir").c_str(), 0755));
  WORKS(mkdir(PathOfLength(4094, "dir").c_str(), 0755));
}

CASE("names", "directories nest deeper than any path can name") {
  const std::string name(200, 'd');
  for (int depth = 0; depth < 40; ++depth) {
    WORKS(mkdir(name.c_str(), 0755));
    WORKS(chdir(name.c_str()));
  }
  WORKS(Touch("file"));
  for (int depth = 0; depth < 40; ++depth) WORKS(chdir(".."));
  EQUAL(Names(".").size(), 1u);
}

CASE("names", "dot and dot-dot") {
  MakeDir("dir");
  MakeDir("dir/sub");
  GIVES(EINVAL, rmdir("dir/."));
  GIVES(ENOTEMPTY, rmdir("dir/sub/.."));
  GIVES(EEXIST, mkdir("dir/.", 0755));
  GIVES(EEXIST, mkdir("dir/..", 0755));
  GIVES(EISDIR, unlink("dir/."));
  EQUAL(Stat("dir/.").st_ino, Stat("dir").st_ino);
  EQUAL(Stat("dir/sub/..").st_ino, Stat("dir").st_ino);
  EQUAL(Stat("dir/sub/../..").st_ino, Stat(".").st_ino);
}

CASE("names", "trailing slashes belong to directories") {
  MakeFile("file");
  MakeDir("dir");
  struct stat attr;
  GIVES(ENOTDIR, stat("file/", &attr));
  WORKS(stat("dir///", &attr));
  GIVES(ENOTDIR, unlink("file/"));
  WORKS(mkdir("new/", 0755));
  WORKS(rmdir("new/"));
  GIVES(EISDIR, open("missing/", O_CREAT | O_WRONLY, 0644));
  GIVES(ENOENT, open("missing/x", O_CREAT | O_WRONLY, 0644));
}

CASE("names", "the empty path and a file on the way") {
  MakeFile("file");
  struct stat attr;
  GIVES(ENOENT, stat("", &attr));
  GIVES(ENOENT, mkdir("", 0755));
  GIVES(ENOENT, unlink(""));
  GIVES(ENOTDIR, stat("file/x", &attr));
  GIVES(ENOTDIR, mkdir("file/x", 0755));
  GIVES(ENOTDIR, open("file/x", O_CREAT | O_RDWR, 0644));
  GIVES(ENOTDIR, chdir("file"));
  GIVES(ENOTDIR, rmdir("file"));
}

CASE("names", "what exists is not made again") {
  MakeFile("file");
  MakeDir("dir");
  WORKS(symlink("nowhere", "dangling"));
  for (const char* name : {"file", "dir", "dangling"}) {
    Context context(name);
    GIVES(EEXIST, mkdir(name, 0755));
    GIVES(EEXIST, symlink("x", name));
    GIVES(EEXIST, mkfifo(name, 0644));
    GIVES(EEXIST, Touch(name));
    GIVES(EEXIST, link("file", name));
  }
}

CASE("symlinks", "targets up to 4095 bytes come back as they went in") {
  for (size_t length : {1, 59, 60, 61, 255, 1000, 4095}) {
    Context context(std::to_string(length) + " bytes");
    const std::string target(length, 't');
    WORKS(symlink(target.c_str(), "link"));
    EQUAL(Stat("link").st_size, static_cast<off_t>(length));
    std::string buffer(5000, '\0');
    EQUAL(readlink("link", buffer.data(), buffer.size()), static_cast<ssize_t>(length));
    CHECK(buffer.substr(0, length) == target);
    WORKS(unlink("link"));
  }
  GIVES(ENAMETOOLONG, symlink(std::string(4096, 't').c_str(), "link"));
  GIVES(ENOENT, symlink("", "link"));
}

CASE("symlinks", "readlink cuts at the buffer, and is for links only") {
  WORKS(symlink("0123456789", "link"));
  char buffer[4];
  EQUAL(readlink("link", buffer, 4), 4);
  EQUAL(std::string(buffer, 4), "0123");
  MakeFile("file");
  MakeDir("dir");
  GIVES(EINVAL, readlink("file", buffer, 4));
  GIVES(EINVAL, readlink("dir", buffer, 4));
  GIVES(ENOENT, readlink("missing", buffer, 4));
}

CASE("symlinks", "loops end with ELOOP, forty links do not") {
  WORKS(symlink("b", "a"));
  WORKS(symlink("a", "b"));
  WORKS(symlink("self", "self"));
  struct stat attr;
  GIVES(ELOOP, stat("a", &attr));
  GIVES(ELOOP, open("self", O_RDONLY));
  GIVES(ELOOP, open("self", O_CREAT | O_WRONLY, 0644));
  GIVES(ELOOP, chdir("a"));
  GIVES(ELOOP, truncate("a", 0));
  WORKS(lstat("a", &attr));

  MakeFile("0", 0644, "end");
  for (int i = 0; i < 41; ++i) WORKS(symlink(std::to_string(i).c_str(), std::to_string(i + 1).c_str()));
  WORKS(stat("40", &attr));
  GIVES(ELOOP, stat("41", &attr));
}

CASE("symlinks", "calls follow a link, or do not, as they should") {
  MakeFile("file", 0600, "content");
  MakeDir("dir");
  WORKS(symlink("file", "link"));
  WORKS(symlink("dir", "dirlink"));
  WORKS(symlink("missing", "dangling"));
  EQUAL(Content("link"), "content");
  WORKS(chmod("link", 0640));
  EQUAL(Mode("file"), static_cast<mode_t>(0640));
  WORKS(truncate("link", 2));
  EQUAL(Stat("file").st_size, 2);
  GIVES(ELOOP, open("link", O_RDONLY | O_NOFOLLOW));
  GIVES(ENOTDIR, open("dirlink", O_RDONLY | O_DIRECTORY | O_NOFOLLOW));
  GIVES(ENOTDIR, rmdir("dirlink"));
  WORKS(mkdir("dirlink/sub", 0755));
  CHECK(Exists("dir/sub"));
  GIVES(ENOENT, open("dangling", O_RDONLY));
  Fd made(open("dangling", O_CREAT | O_WRONLY, 0644));
  WORKS(made);
  CHECK(Exists("missing"));
  WORKS(unlink("link"));
  CHECK(Exists("file"));
  EQUAL(Stat("dirlink").st_mode & 0777, static_cast<mode_t>(0777));
}
