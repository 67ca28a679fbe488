// Extended attributes of users, root and nobody.
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>

#include "check.h"

using namespace posix;

namespace {

int Set(const char* path, const std::string& name, const std::string& value, int flags = 0) {
  return lsetxattr(path, name.c_str(), value.data(), value.size(), flags);
}

std::string Get(const char* path, const std::string& name) {
  std::string value(70000, '\0');
  ssize_t size = lgetxattr(path, name.c_str(), value.data(), value.size());
  if (size < 0) return "(" + ErrnoName(errno) + ")";
  value.resize(size);
  return value;
}

int GetError(const char* path, const std::string& name) {
  return lgetxattr(path, name.c_str(), nullptr, 0) < 0 ? -1 : 0;
}

// The names of the user. and trusted. namespaces, sorted.
std::vector<std::string> List(const char* path) {
  std::string names(70000, '\0');
  ssize_t size = llistxattr(path, names.data(), names.size());
  WORKS(size);
  std::vector<std::string> found;
  for (size_t at = 0; static_cast<ssize_t>(at) < size; at += found.back().size() + 1)
    found.push_back(names.c_str() + at);
  std::erase_if(found, [](const std::string& name) {
    return !name.starts_with("user.") && !name.starts_with("trusted.");
  });
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace

CASE("xattr", "set, get, replace, list and remove, on files and directories") {
  MakeFile("file");
  MakeDir("dir");
  for (const char* path : {"file", "dir"}) {
    Context context(path);
    EQUAL(Get(path, "user.a"), "(ENODATA)");
    WORKS(Set(path, "user.a", "one"));
    WORKS(Set(path, "user.b", ""));
    WORKS(Set(path, "trusted.c", std::string("\0\1\377", 3)));
    EQUAL(Get(path, "user.a"), "one");
    EQUAL(Get(path, "user.b"), "");
    EQUAL(Get(path, "trusted.c"), std::string("\0\1\377", 3));
    CHECK((List(path) == std::vector<std::string>{"trusted.c", "user.a", "user.b"}));
    WORKS(Set(path, "user.a", "longer than before"));
    EQUAL(Get(path, "user.a"), "longer than before");
    WORKS(lremovexattr(path, "user.a"));
    EQUAL(Get(path, "user.a"), "(ENODATA)");
    GIVES(ENODATA, lremovexattr(path, "user.a"));
    CHECK((List(path) == std::vector<std::string>{"trusted.c", "user.b"}));
  }
}

CASE("xattr", "XATTR_CREATE and XATTR_REPLACE") {
  MakeFile("file");
  GIVES(ENODATA, Set("file", "user.a", "x", XATTR_REPLACE));
  WORKS(Set("file", "user.a", "x", XATTR_CREATE));
  GIVES(EEXIST, Set("file", "user.a", "y", XATTR_CREATE));
  EQUAL(Get("file", "user.a"), "x");
  WORKS(Set("file", "user.a", "y", XATTR_REPLACE));
  EQUAL(Get("file", "user.a"), "y");
}

CASE("xattr", "sizes: asked with no buffer, refused with a small one") {
  MakeFile("file");
  WORKS(Set("file", "user.a", std::string(1000, 'v')));
  char small[10];
  EQUAL(getxattr("file", "user.a", nullptr, 0), 1000);
  GIVES(ERANGE, getxattr("file", "user.a", small, sizeof(small)));
  GIVES(ERANGE, listxattr("file", small, 1));
  CHECK(listxattr("file", nullptr, 0) >= 7);
  for (size_t size : {1, 100, 1000, 2000, 3000}) {
    Context context(std::to_string(size) + " bytes");
    WORKS(Set("file", "user.a", std::string(size, 's')));
    EQUAL(Get("file", "user.a"), std::string(size, 's'));
  }
  GIVES(E2BIG, Set("file", "user.a", std::string(65537, 'x')));
}

CASE("xattr", "names: up to 255 bytes, of a known namespace") {
  MakeFile("file");
  WORKS(Set("file", "user." + std::string(250, 'n'), "x"));
  GIVES(ERANGE, Set("file", "user." + std::string(251, 'n'), "x"));
  GIVES(ERANGE, Set("file", "", "x"));
  GIVES(EOPNOTSUPP, Set("file", "nonsense", "x"));
  GIVES(EOPNOTSUPP, Set("file", "unknown.a", "x"));
  WORKS(Set("file", "user.\xc3\xa9 with spaces", "x"));
}

CASE("xattr", "user attributes follow the permissions of the file") {
  MakeFile("file", 0600);
  WORKS(Set("file", "user.a", "x"));
  {
    As user(kAlice);
    GIVES(EACCES, GetError("file", "user.a"));
    GIVES(EACCES, Set("file", "user.a", "y"));
    GIVES(EACCES, lremovexattr("file", "user.a"));
  }
  WORKS(chmod("file", 0644));
  {
    As user(kAlice);
    EQUAL(Get("file", "user.a"), "x");
    GIVES(EACCES, Set("file", "user.a", "y"));
  }
  WORKS(chmod("file", 0666));
  As user(kAlice);
  WORKS(Set("file", "user.a", "y"));
}

CASE("xattr", "trusted attributes are root's") {
  MakeFile("file", 0666);
  WORKS(Set("file", "trusted.a", "x"));
  As user(kAlice);
  GIVES(EPERM, Set("file", "trusted.b", "y"));
  GIVES(ENODATA, GetError("file", "trusted.a"));
  CHECK(List("file").empty());
}

CASE("xattr", "symbolic links and nodes carry no user attributes") {
  MakeFile("file");
  WORKS(symlink("file", "link"));
  WORKS(mkfifo("fifo", 0666));
  GIVES(EPERM, Set("link", "user.a", "x"));
  GIVES(EPERM, Set("fifo", "user.a", "x"));
  WORKS(Set("link", "trusted.a", "x"));
  WORKS(setxattr("link", "user.a", "x", 1, 0));
  EQUAL(Get("file", "user.a"), "x");
}

CASE("xattr", "they stay with the file through rename and link, and move its ctime") {
  MakeFile("file");
  const struct stat before = Stat("file");
  LetTimePass();
  WORKS(Set("file", "user.a", "x"));
  const struct stat after = Stat("file");
  CHECK(after.st_ctim.tv_sec != before.st_ctim.tv_sec || after.st_ctim.tv_nsec != before.st_ctim.tv_nsec);
  EQUAL(after.st_mtim.tv_nsec, before.st_mtim.tv_nsec);
  WORKS(link("file", "other"));
  WORKS(rename("file", "moved"));
  EQUAL(Get("moved", "user.a"), "x");
  EQUAL(Get("other", "user.a"), "x");
}

CASE("xattr", "fifty attributes on one file") {
  MakeFile("file");
  for (int i = 0; i < 50; ++i)
    WORKS(Set("file", "user.attribute" + std::to_string(i), std::to_string(i * i)));
  EQUAL(List("file").size(), 50u);
  for (int i = 0; i < 50; ++i)
    EQUAL(Get("file", "user.attribute" + std::to_string(i)), std::to_string(i * i));
  for (int i = 0; i < 50; i += 2) WORKS(lremovexattr("file", ("user.attribute" + std::to_string(i)).c_str()));
  EQUAL(List("file").size(), 25u);
}
