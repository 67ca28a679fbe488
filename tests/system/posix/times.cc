// atime, mtime, ctime: what changes them, what does not, and every value that can be set.
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "check.h"

using namespace posix;

namespace {

bool Same(const timespec& a, const timespec& b) { return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec; }
bool Later(const timespec& a, const timespec& b) {
  return a.tv_sec != b.tv_sec ? a.tv_sec > b.tv_sec : a.tv_nsec > b.tv_nsec;
}

// Checks which of `path`'s times `change` moves forward, of those named in `moved` ("m", "c", "mc", "").
void Moves(const std::string& path, const std::string& moved, const std::function<void()>& change,
           const std::string& after = "") {
  const struct stat before = Stat(path);
  LetTimePass();
  change();
  const struct stat now = Stat(after.empty() ? path : after);
  for (auto [letter, old_time, new_time] :
       {std::tuple{'m', before.st_mtim, now.st_mtim}, {'c', before.st_ctim, now.st_ctim}}) {
    Context context(path + "'s " + letter + "time");
    if (moved.find(letter) == std::string::npos) {
      CHECK(Same(old_time, new_time));
    } else {
      CHECK(Later(new_time, old_time));
    }
  }
}

}  // namespace

CASE("times", "what a change of a file's content or attributes moves") {
  MakeFile("file", 0644, "content");
  Fd fd(open("file", O_RDWR));
  struct Row {
    const char* name;
    const char* moved;
    std::function<void()> change;
  };
  const Row rows[] = {
      {"write", "mc", [&] { WORKS(pwrite(fd, "x", 1, 0)); }},
      {"truncate to another size", "mc", [&] { WORKS(truncate("file", 3)); }},
      {"ftruncate to another size", "mc", [&] { WORKS(ftruncate(fd, 9)); }},
      {"ftruncate to the same size", "mc", [&] { WORKS(ftruncate(fd, 9)); }},
      {"O_TRUNC", "mc", [&] { WORKS(close(open("file", O_WRONLY | O_TRUNC))); }},
      {"fallocate that grows it", "mc", [&] { WORKS(fallocate(fd, 0, 0, 100)); }},
      {"chmod", "c", [&] { WORKS(chmod("file", 0600)); }},
      {"chown", "c", [&] { WORKS(chown("file", 4001, 5001)); }},
      {"link", "c", [&] { WORKS(link("file", "other")); }},
      {"unlink of another name", "c", [&] { WORKS(unlink("other")); }},
      {"utimensat", "c",
       [&] {
         const timespec keep[2] = {{7, 7}, {0, UTIME_OMIT}};
         WORKS(utimensat(AT_FDCWD, "file", keep, 0));
       }},
      {"stat", "", [&] { Stat("file"); }},
      {"read", "", [&] { Content("file"); }},
      {"open for writing", "", [&] { WORKS(close(open("file", O_WRONLY))); }},
      {"write of nothing", "", [&] { WORKS(write(fd, "", 0)); }},
      {"a refused open", "", [&] { GIVES(EEXIST, open("file", O_CREAT | O_EXCL, 0644)); }},
  };
  for (const Row& row : rows) {
    Context context(row.name);
    Moves("file", row.moved, row.change);
  }
  Moves(
      "file", "c", [] { WORKS(rename("file", "renamed")); }, "renamed");
}

CASE("times", "a change of a directory moves its mtime and ctime") {
  MakeDir("dir");
  MakeFile("outside");
  struct Row {
    const char* name;
    std::function<int()> change;
  };
  const Row rows[] = {
      {"creat", [] { return close(open("dir/file", O_CREAT | O_WRONLY, 0644)); }},
      {"mkdir", [] { return mkdir("dir/sub", 0755); }},
      {"symlink", [] { return symlink("x", "dir/link"); }},
      {"mkfifo", [] { return mkfifo("dir/fifo", 0644); }},
      {"link", [] { return link("outside", "dir/hard"); }},
      {"rename within", [] { return rename("dir/fifo", "dir/renamed"); }},
      {"rename out", [] { return rename("dir/hard", "moved"); }},
      {"rename in", [] { return rename("moved", "dir/hard"); }},
      {"unlink", [] { return unlink("dir/file"); }},
      {"rmdir", [] { return rmdir("dir/sub"); }},
  };
  for (const Row& row : rows) {
    Context context(row.name);
    Moves("dir", "mc", [&] { WORKS(row.change()); });
  }
  Moves("dir", "", [] { GIVES(EEXIST, mkdir("dir/link", 0755)); });
  Moves("dir", "", [] { GIVES(ENOENT, unlink("dir/missing")); });
  Moves("dir", "", [] { WORKS(chmod("dir/renamed", 0600)); });
  Moves("dir", "", [] { Names("dir"); });
}

CASE("times", "a new file has one time, the present") {
  timespec before, after;
  clock_gettime(CLOCK_REALTIME, &before);
  LetTimePass();
  MakeFile("file");
  MakeDir("dir");
  LetTimePass();
  clock_gettime(CLOCK_REALTIME, &after);
  for (const char* path : {"file", "dir"}) {
    Context context(path);
    const struct stat attr = Stat(path);
    for (const timespec& time : {attr.st_atim, attr.st_mtim, attr.st_ctim}) {
      CHECK(Later(time, before));
      CHECK(Later(after, time));
    }
  }
}

CASE("times", "utimensat sets each time to the nanosecond, or leaves it") {
  MakeFile("file");
  MakeDir("dir");
  WORKS(symlink("file", "link"));
  struct Row {
    int64_t seconds;
    long nanoseconds;
  };
  for (const char* path : {"file", "dir"}) {
    for (Row row : {Row{0, 0},
                    {1, 1},
                    {1'000'000'000, 999'999'999},
                    {2'147'483'647, 5},
                    {2'147'483'648, 6},
                    {4'294'967'296, 7},
                    {10'000'000'000, 123'456'789},
                    {-1, 0},
                    {-1'000'000, 500'000'000},
                    {-2'000'000'000, 1}}) {
      Context context(std::string(path) + " to " + std::to_string(row.seconds) + "." +
                      std::to_string(row.nanoseconds));
      const timespec times[2] = {{row.seconds, row.nanoseconds}, {row.seconds + 1, row.nanoseconds}};
      WORKS(utimensat(AT_FDCWD, path, times, 0));
      EQUAL(Stat(path).st_atim.tv_sec, row.seconds);
      EQUAL(Stat(path).st_atim.tv_nsec, row.nanoseconds);
      EQUAL(Stat(path).st_mtim.tv_sec, row.seconds + 1);
      EQUAL(Stat(path).st_mtim.tv_nsec, row.nanoseconds);
    }
  }
  const timespec access_only[2] = {{11, 12}, {0, UTIME_OMIT}}, change_only[2] = {{0, UTIME_OMIT}, {13, 14}};
  WORKS(utimensat(AT_FDCWD, "file", access_only, 0));
  WORKS(utimensat(AT_FDCWD, "file", change_only, 0));
  EQUAL(Stat("file").st_atim.tv_sec, 11);
  EQUAL(Stat("file").st_mtim.tv_nsec, 14);
  WORKS(utimensat(AT_FDCWD, "link", access_only, AT_SYMLINK_NOFOLLOW));
  EQUAL(Stat("link").st_atim.tv_sec, 11);
  const timespec wrong[2] = {{0, 1'000'000'000}, {0, 0}};
  GIVES(EINVAL, utimensat(AT_FDCWD, "file", wrong, 0));
  GIVES(ENOENT, utimensat(AT_FDCWD, "missing", access_only, 0));
}

CASE("times", "UTIME_NOW is the present for one time and leaves the other") {
  MakeFile("file");
  const timespec past[2] = {{1000, 0}, {2000, 0}}, now_and_omit[2] = {{0, UTIME_NOW}, {0, UTIME_OMIT}};
  WORKS(utimensat(AT_FDCWD, "file", past, 0));
  timespec before;
  clock_gettime(CLOCK_REALTIME_COARSE, &before);
  WORKS(utimensat(AT_FDCWD, "file", now_and_omit, 0));
  CHECK(Stat("file").st_atim.tv_sec >= before.tv_sec);
  EQUAL(Stat("file").st_mtim.tv_sec, 2000);
}

CASE("times", "times that were set stay while the file is open, written before and closed") {
  Fd fd(open("file", O_CREAT | O_RDWR, 0644));
  EQUAL(write(fd, "content", 7), 7);
  const timespec past[2] = {{1000, 1}, {2000, 2}};
  WORKS(futimens(fd, past));
  EQUAL(Stat("file").st_mtim.tv_sec, 2000);
  WORKS(fsync(fd));
  EQUAL(Stat("file").st_mtim.tv_sec, 2000);
  WORKS(fd.Close());
  EQUAL(Stat("file").st_mtim.tv_sec, 2000);
  EQUAL(Stat("file").st_mtim.tv_nsec, 2);
  EQUAL(Stat("file").st_size, 7);
}

CASE("times", "a write through a shared mapping moves mtime by the time it is synced") {
  MakeFile("file", 0644, std::string(4096, 'a'));
  Fd fd(open("file", O_RDWR));
  void* memory = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  CHECK(memory != MAP_FAILED);
  Moves("file", "mc", [&] {
    memset(memory, 'b', 10);
    WORKS(msync(memory, 4096, MS_SYNC));
    WORKS(fsync(fd));
  });
}
