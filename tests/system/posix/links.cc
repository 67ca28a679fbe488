// Hard links, link counts, and files that outlive their names.
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "check.h"

using namespace posix;

CASE("links", "names of one file share everything, and the count follows") {
  MakeFile("a", 0644, "one");
  for (int count = 2; count <= 20; ++count) {
    const std::string name = "a" + std::to_string(count);
    WORKS(link("a", name.c_str()));
    EQUAL(Stat("a").st_nlink, static_cast<nlink_t>(count));
    EQUAL(Stat(name).st_ino, Stat("a").st_ino);
  }
  WORKS(chmod("a7", 0600));
  EQUAL(Mode("a20"), static_cast<mode_t>(0600));
  Fd fd(open("a3", O_WRONLY | O_APPEND));
  EQUAL(write(fd, "two", 3), 3);
  EQUAL(Content("a13"), "onetwo");
  WORKS(unlink("a"));
  EQUAL(Stat("a2").st_nlink, 19u);
  EQUAL(Content("a2"), "onetwo");
}

CASE("links", "every kind but directories can have several names") {
  MakeFile("file");
  WORKS(mkfifo("fifo", 0644));
  WORKS(symlink("file", "symlink"));
  MakeDir("dir");
  for (const char* name : {"file", "fifo", "symlink"}) {
    Context context(name);
    WORKS(link(name, "other"));
    EQUAL(Stat("other").st_ino, Stat(name).st_ino);
    EQUAL(Stat("other").st_nlink, 2u);
    WORKS(unlink("other"));
  }
  GIVES(EPERM, link("dir", "other"));
  WORKS(linkat(AT_FDCWD, "symlink", AT_FDCWD, "followed", AT_SYMLINK_FOLLOW));
  EQUAL(Stat("followed").st_ino, Stat("file").st_ino);
}

CASE("links", "errors of link and unlink") {
  MakeFile("file");
  MakeDir("dir");
  GIVES(ENOENT, link("missing", "x"));
  GIVES(ENOENT, link("file", "missing/x"));
  GIVES(ENOTDIR, link("file/x", "y"));
  GIVES(EEXIST, link("file", "file"));
  GIVES(EEXIST, link("file", "dir"));
  GIVES(EISDIR, unlink("dir"));
  GIVES(ENOENT, unlink("missing"));
  GIVES(ENOTDIR, unlink("file/x"));
  WORKS(symlink("missing", "dangling"));
  WORKS(unlink("dangling"));
}

CASE("links", "a directory counts its subdirectories") {
  MakeDir("dir");
  EQUAL(Stat("dir").st_nlink, 2u);
  for (int i = 1; i <= 20; ++i) {
    MakeDir("dir/" + std::to_string(i));
    EQUAL(Stat("dir").st_nlink, static_cast<nlink_t>(2 + i));
  }
  MakeFile("dir/file");
  EQUAL(Stat("dir").st_nlink, 22u);
  for (int i = 1; i <= 20; ++i) {
    WORKS(rmdir(("dir/" + std::to_string(i)).c_str()));
    EQUAL(Stat("dir").st_nlink, static_cast<nlink_t>(22 - i));
  }
}

CASE("links", "an open file lives on without a name") {
  Fd fd(open("file", O_CREAT | O_RDWR, 0644));
  EQUAL(write(fd, "before", 6), 6);
  WORKS(unlink("file"));
  CHECK(!Exists("file"));
  struct stat attr;
  WORKS(fstat(fd, &attr));
  EQUAL(attr.st_nlink, 0u);
  EQUAL(attr.st_size, 6);
  EQUAL(pwrite(fd, "after!", 6, 100000), 6);
  char buffer[6];
  EQUAL(pread(fd, buffer, 6, 0), 6);
  EQUAL(std::string(buffer, 6), "before");
  EQUAL(pread(fd, buffer, 6, 100000), 6);
  EQUAL(std::string(buffer, 6), "after!");
  WORKS(fchmod(fd, 0600));
  WORKS(ftruncate(fd, 3));
  WORKS(fsync(fd));
  WORKS(fstat(fd, &attr));
  EQUAL(attr.st_size, 3);
  EQUAL(attr.st_mode & 07777, static_cast<mode_t>(0600));
}

CASE("links", "a name that was taken again is another file") {
  Fd old_fd(open("file", O_CREAT | O_RDWR, 0644));
  EQUAL(write(old_fd, "old", 3), 3);
  WORKS(unlink("file"));
  MakeFile("file", 0644, "new");
  char buffer[3];
  EQUAL(pread(old_fd, buffer, 3, 0), 3);
  EQUAL(std::string(buffer, 3), "old");
  EQUAL(Content("file"), "new");
  struct stat attr;
  WORKS(fstat(old_fd, &attr));
  CHECK(attr.st_ino != Stat("file").st_ino);
}

CASE("links", "several descriptors of an unlinked file see one file") {
  MakeFile("file", 0644, "0123456789");
  Fd first(open("file", O_RDWR)), second(open("file", O_RDONLY));
  WORKS(unlink("file"));
  EQUAL(pwrite(first, "X", 1, 5), 1);
  char byte;
  EQUAL(pread(second, &byte, 1, 5), 1);
  EQUAL(byte, 'X');
  WORKS(first.Close());
  EQUAL(pread(second, &byte, 1, 9), 1);
  EQUAL(byte, '9');
}

CASE("links", "another process keeps an unlinked file alive too") {
  MakeFile("file", 0644, "content");
  int to_child[2];
  WORKS(pipe(to_child));
  Fd fd(open("file", O_RDONLY));
  CHECK(InChild([&] {
    fd.Close();
    Fd own(open("file", O_RDONLY));
    if (unlink("file") != 0) return false;
    char buffer[7];
    return pread(own, buffer, 7, 0) == 7 && std::string(buffer, 7) == "content";
  }));
  char buffer[7];
  EQUAL(pread(fd, buffer, 7, 0), 7);
}

CASE("links", "rmdir wants an empty directory") {
  MakeDir("dir");
  MakeFile("dir/file");
  GIVES(ENOTEMPTY, rmdir("dir"));
  WORKS(unlink("dir/file"));
  WORKS(symlink("nowhere", "dir/link"));
  GIVES(ENOTEMPTY, rmdir("dir"));
  WORKS(unlink("dir/link"));
  MakeDir("dir/sub");
  GIVES(ENOTEMPTY, rmdir("dir"));
  WORKS(rmdir("dir/sub"));
  WORKS(rmdir("dir"));
  GIVES(ENOENT, rmdir("dir"));
}

CASE("links", "a removed working directory takes no new entries") {
  MakeDir("dir");
  WORKS(chdir("dir"));
  WORKS(rmdir("../dir"));
  GIVES(ENOENT, open("file", O_CREAT | O_WRONLY, 0644));
  GIVES(ENOENT, mkdir("sub", 0755));
  GIVES(ENOENT, symlink("x", "link"));
  WORKS(chdir("/"));
}

CASE("special", "nodes of every kind keep their type and number") {
  struct Row {
    const char* name;
    mode_t type;
    dev_t device;
  };
  for (Row row : {Row{"file", S_IFREG, 0},
                  {"fifo", S_IFIFO, 0},
                  {"socket", S_IFSOCK, 0},
                  {"char", S_IFCHR, makedev(1, 3)},
                  {"block", S_IFBLK, makedev(240, 1000)},
                  {"wide", S_IFCHR, makedev(4000, 100000)}}) {
    Context context(row.name);
    WORKS(mknod(row.name, row.type | 0640, row.device));
    const struct stat attr = Stat(row.name);
    EQUAL(attr.st_mode & S_IFMT, row.type);
    EQUAL(attr.st_mode & 07777, static_cast<mode_t>(0640));
    EQUAL(attr.st_nlink, 1u);
    EQUAL(attr.st_rdev, row.device);
    GIVES(EEXIST, mknod(row.name, row.type | 0640, row.device));
  }
}

CASE("special", "devices are made by root alone, fifos and sockets by everyone") {
  As user(kAlice);
  GIVES(EPERM, mknod("char", S_IFCHR | 0666, makedev(1, 3)));
  GIVES(EPERM, mknod("block", S_IFBLK | 0666, makedev(7, 0)));
  WORKS(mknod("fifo", S_IFIFO | 0644, 0));
  WORKS(mknod("socket", S_IFSOCK | 0644, 0));
  WORKS(mknod("file", S_IFREG | 0644, 0));
}

CASE("special", "statvfs tells sizes and the longest name") {
  struct statvfs figures;
  WORKS(statvfs(".", &figures));
  EQUAL(figures.f_namemax, 255u);
  CHECK(figures.f_bsize > 0 && figures.f_frsize > 0);
  CHECK(figures.f_blocks > 0);
  CHECK(figures.f_bfree <= figures.f_blocks && figures.f_bavail <= figures.f_bfree);
}
