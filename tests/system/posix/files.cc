// Regular files: open flags, reading and writing at every place, truncation, holes, copying.
#include <sys/resource.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>

#include "check.h"

using namespace posix;

namespace {

// Bytes that differ from place to place, so that misplaced data shows.
std::string Pattern(size_t size, int seed = 1) {
  std::string data(size, '\0');
  uint32_t state = seed * 2654435761u + 1;
  for (char& byte : data) {
    state = state * 1664525u + 1013904223u;
    byte = static_cast<char>(state >> 24);
  }
  return data;
}

std::string ReadAt(int fd, off_t offset, size_t size) {
  std::string data(size, '\0');
  ssize_t got = pread(fd, data.data(), size, offset);
  data.resize(got < 0 ? 0 : got);
  return data;
}

ssize_t WriteAt(int fd, off_t offset, const std::string& data) {
  return pwrite(fd, data.data(), data.size(), offset);
}

}  // namespace

CASE("open", "flags and kinds: every combination's answer") {
  MakeFile("file", 0644, "content");
  MakeDir("dir");
  WORKS(symlink("file", "link"));
  WORKS(mknod("socket", S_IFSOCK | 0644, 0));
  WORKS(mkfifo("fifo", 0644));
  struct Row {
    const char* path;
    int flags;
    int error;
  };
  const Row rows[] = {
      {"file", O_RDONLY, 0},
      {"file", O_CREAT | O_RDWR, 0},
      {"file", O_CREAT | O_EXCL | O_RDWR, EEXIST},
      {"file", O_RDONLY | O_DIRECTORY, ENOTDIR},
      {"file", O_PATH, 0},
      {"dir", O_RDONLY, 0},
      {"dir", O_RDONLY | O_DIRECTORY, 0},
      {"dir", O_WRONLY, EISDIR},
      {"dir", O_RDWR, EISDIR},
      {"dir", O_CREAT | O_RDONLY, EISDIR},
      {"dir", O_CREAT | O_EXCL | O_WRONLY, EEXIST},
      {"dir", O_RDONLY | O_TRUNC, EISDIR},
      {"link", O_RDONLY, 0},
      {"link", O_RDONLY | O_NOFOLLOW, ELOOP},
      {"link", O_CREAT | O_EXCL | O_WRONLY, EEXIST},
      {"link", O_PATH | O_NOFOLLOW, 0},
      {"missing", O_RDONLY, ENOENT},
      {"missing", O_RDWR | O_TRUNC, ENOENT},
      {"missing/x", O_CREAT | O_RDWR, ENOENT},
      {"socket", O_RDONLY, ENXIO},
      {"fifo", O_WRONLY | O_NONBLOCK, ENXIO},
      {"fifo", O_RDONLY | O_NONBLOCK, 0},
  };
  for (const Row& row : rows) {
    Context context(std::string(row.path) + " with flags " + std::to_string(row.flags));
    Fd fd(open(row.path, row.flags, 0644));
    GIVES(row.error, fd);
  }
  EQUAL(Content("file"), "content");
}

CASE("open", "O_TRUNC empties, O_CREAT leaves alone what is there") {
  MakeFile("file", 0600, "content");
  WORKS(close(open("file", O_CREAT | O_WRONLY, 0777)));
  EQUAL(Mode("file"), static_cast<mode_t>(0600));
  EQUAL(Content("file"), "content");
  WORKS(close(open("file", O_WRONLY | O_TRUNC)));
  EQUAL(Stat("file").st_size, 0);
}

CASE("open", "a descriptor does what its mode says and no more") {
  MakeFile("file", 0644, "content");
  Fd read_only(open("file", O_RDONLY)), write_only(open("file", O_WRONLY)), path(open("file", O_PATH));
  char byte;
  GIVES(EBADF, write(read_only, "x", 1));
  GIVES(EBADF, read(write_only, &byte, 1));
  GIVES(EBADF, read(path, &byte, 1));
  GIVES(EINVAL, ftruncate(read_only, 0));
  GIVES(EBADF, fallocate(read_only, 0, 0, 10));
  Fd dir(open(".", O_RDONLY | O_DIRECTORY));
  GIVES(EISDIR, read(dir, &byte, 1));
  struct stat attr;
  WORKS(fstat(path, &attr));
}

CASE("open", "thousands of descriptors at once") {
  std::vector<int> fds;
  for (int i = 0; i < 900; ++i) {
    fds.push_back(open(std::to_string(i).c_str(), O_CREAT | O_RDWR, 0644));
    WORKS(fds.back());
    EQUAL(write(fds.back(), &i, sizeof(i)), static_cast<ssize_t>(sizeof(i)));
  }
  for (int i = 0; i < 900; ++i) {
    int value = -1;
    EQUAL(pread(fds[i], &value, sizeof(value), 0), static_cast<ssize_t>(sizeof(value)));
    EQUAL(value, i);
    WORKS(close(fds[i]));
  }
}

CASE("io", "what is written anywhere, in any size, is read there") {
  Fd fd(open("file", O_CREAT | O_RDWR, 0644));
  std::string model;
  int seed = 0;
  for (size_t offset : {0, 1, 511, 4095, 4096, 4097, 65535, 131072, 1048575, 1048576, 3000000}) {
    for (size_t size : {1, 100, 4096, 4097, 70000, 1048577}) {
      const std::string data = Pattern(size, ++seed);
      EQUAL(WriteAt(fd, offset, data), static_cast<ssize_t>(size));
      if (model.size() < offset + size) model.resize(offset + size);
      model.replace(offset, size, data);
    }
  }
  EQUAL(Stat("file").st_size, static_cast<off_t>(model.size()));
  CHECK(ReadAt(fd, 0, model.size() + 10) == model);
  for (size_t offset : {1, 4095, 65537, 1048575, 2999999}) {
    for (size_t size : {1, 4096, 5000, 300000}) {
      CHECK(ReadAt(fd, offset, size) == model.substr(offset, size));
    }
  }
  Fd again(open("file", O_RDONLY));
  CHECK(ReadAt(again, 0, model.size()) == model);
}

CASE("io", "the end of a file: short reads, then nothing") {
  MakeFile("file", 0644, "0123456789");
  Fd fd(open("file", O_RDONLY));
  EQUAL(ReadAt(fd, 5, 100), "56789");
  EQUAL(ReadAt(fd, 10, 100), "");
  EQUAL(ReadAt(fd, 1'000'000'000'000, 1), "");
  char byte;
  GIVES(EINVAL, pread(fd, &byte, 1, -1));
  EQUAL(lseek(fd, 0, SEEK_END), 10);
  GIVES(EINVAL, lseek(fd, -11, SEEK_END));
}

CASE("io", "vectors are one write and one read") {
  Fd fd(open("file", O_CREAT | O_RDWR, 0644));
  std::string a = Pattern(1000, 1), b = Pattern(5000, 2), c = Pattern(3, 3);
  iovec out[3] = {{a.data(), a.size()}, {b.data(), b.size()}, {c.data(), c.size()}};
  EQUAL(pwritev(fd, out, 3, 77), 6003);
  CHECK(ReadAt(fd, 77, 10000) == a + b + c);
  std::string x(3, 0), y(6000, 0);
  iovec in[2] = {{x.data(), 3}, {y.data(), 6000}};
  EQUAL(preadv(fd, in, 2, 77), 6003);
  CHECK(x + y == a + b + c);
}

CASE("io", "O_APPEND writes at the end, wherever the position is") {
  MakeFile("file", 0644, "start");
  Fd fd(open("file", O_RDWR | O_APPEND)), other(open("file", O_RDWR | O_APPEND));
  EQUAL(write(fd, "-one", 4), 4);
  EQUAL(write(other, "-two", 4), 4);
  WORKS(lseek(fd, 0, SEEK_SET));
  EQUAL(write(fd, "-three", 6), 6);
  EQUAL(Content("file"), "start-one-two-three");
  EQUAL(lseek(fd, 0, SEEK_CUR), 19);
  WORKS(truncate("file", 2));
  EQUAL(write(other, "!", 1), 1);
  EQUAL(Content("file"), "st!");
}

CASE("io", "appends of several processes neither overlap nor tear") {
  MakeFile("log");
  constexpr int kProcesses = 4, kRecords = 200;
  for (int process = 0; process < kProcesses; ++process) {
    if (fork() != 0) continue;
    int fd = open("log", O_WRONLY | O_APPEND);
    const std::string record(50 + process * 30, 'a' + process);
    bool good = fd >= 0;
    for (int i = 0; i < kRecords; ++i)
      good &= write(fd, (record + "\n").data(), record.size() + 1) == ssize_t(record.size() + 1);
    _exit(good ? 0 : 1);
  }
  for (int process = 0, status; process < kProcesses; ++process) {
    WORKS(wait(&status));
    EQUAL(status, 0);
  }
  std::istringstream lines(Content("log"));
  int counts[kProcesses] = {};
  for (std::string line; std::getline(lines, line);) {
    const int process = line.empty() ? -1 : line[0] - 'a';
    if (!CHECK(process >= 0 && process < kProcesses && line == std::string(50 + process * 30, line[0])))
      return;
    ++counts[process];
  }
  for (int count : counts) EQUAL(count, kRecords);
}

CASE("io", "a write is seen by another descriptor and another process at once") {
  Fd writer(open("file", O_CREAT | O_RDWR, 0644)), reader(open("file", O_RDONLY));
  for (int i = 0; i < 20; ++i) {
    const std::string data = Pattern(3000, i);
    EQUAL(WriteAt(writer, i * 3000, data), 3000);
    CHECK(ReadAt(reader, i * 3000, 3000) == data);
    EQUAL(Stat("file").st_size, (i + 1) * 3000);
    CHECK(InChild([&] { return Content("file").substr(i * 3000) == data; }));
  }
}

CASE("io", "O_DIRECT, O_SYNC and O_DSYNC transfer the same bytes") {
  for (int flag : {O_DIRECT, O_SYNC, O_DSYNC, O_DIRECT | O_SYNC}) {
    Context context("flag " + std::to_string(flag));
    Fd fd(open("file", O_CREAT | O_RDWR | O_TRUNC | flag, 0644));
    WORKS(fd);
    alignas(4096) static char out[1 << 16], in[1 << 16];
    memcpy(out, Pattern(sizeof(out), flag).data(), sizeof(out));
    EQUAL(pwrite(fd, out, sizeof(out), 4096), static_cast<ssize_t>(sizeof(out)));
    EQUAL(pwrite(fd, out, 4096, 8192), 4096);
    memcpy(out + 4096, out, 4096);
    EQUAL(pread(fd, in, sizeof(in), 4096), static_cast<ssize_t>(sizeof(in)));
    CHECK(memcmp(in, out, sizeof(in)) == 0);
    Fd plain(open("file", O_RDONLY));
    CHECK(ReadAt(plain, 4096, sizeof(out)) == std::string(out, sizeof(out)));
    CHECK(ReadAt(plain, 0, 4096) == std::string(4096, '\0'));
  }
}

CASE("io", "the file size limit of a process is kept") {
  signal(SIGXFSZ, SIG_IGN);
  const rlimit limit{10000, 10000};
  WORKS(setrlimit(RLIMIT_FSIZE, &limit));
  Fd fd(open("file", O_CREAT | O_RDWR, 0644));
  EQUAL(WriteAt(fd, 0, std::string(20000, 'x')), 10000);
  GIVES(EFBIG, WriteAt(fd, 10000, "x"));
  GIVES(EFBIG, ftruncate(fd, 10001));
  EQUAL(Stat("file").st_size, 10000);
}

CASE("truncate", "cuts, grows with zeros, and forgets what was cut") {
  const std::string data = Pattern(300'000);
  for (off_t size : {0, 1, 4095, 4096, 4097, 100'000, 131'072, 299'999, 300'000, 300'001, 1'000'000}) {
    Context context("to " + std::to_string(size));
    MakeFile("file", 0644, data);
    WORKS(truncate("file", size));
    EQUAL(Stat("file").st_size, size);
    WORKS(truncate("file", 1'000'000));
    std::string expected = data.substr(0, size);
    expected.resize(1'000'000);
    CHECK(Content("file") == expected);
    WORKS(unlink("file"));
  }
}

CASE("truncate", "a write behind the cut leaves zeros between") {
  MakeFile("file", 0644, Pattern(10000));
  Fd fd(open("file", O_RDWR));
  WORKS(ftruncate(fd, 1000));
  EQUAL(WriteAt(fd, 9000, "end"), 3);
  CHECK(Content("file") == Pattern(10000).substr(0, 1000) + std::string(8000, '\0') + "end");
}

CASE("truncate", "errors") {
  MakeFile("file", 0644, "content");
  MakeDir("dir");
  GIVES(EINVAL, truncate("file", -1));
  GIVES(EISDIR, truncate("dir", 0));
  GIVES(ENOENT, truncate("missing", 0));
  GIVES(ENOTDIR, truncate("file/x", 0));
  WORKS(mkfifo("fifo", 0644));
  GIVES(EINVAL, truncate("fifo", 0));
  EQUAL(Content("file"), "content");
}

CASE("sparse", "holes read as zeros, take no space, and are found") {
  Fd fd(open("file", O_CREAT | O_RDWR, 0644));
  const off_t mib = 1 << 20;
  const std::string data = Pattern(mib);
  EQUAL(WriteAt(fd, 64 * mib, data), mib);
  EQUAL(WriteAt(fd, 1024 * mib, data), mib);
  WORKS(fsync(fd));
  EQUAL(Stat("file").st_size, 1025 * mib);
  CHECK(Stat("file").st_blocks * 512 < 8 * mib);
  CHECK(Stat("file").st_blocks * 512 >= 2 * mib);
  CHECK(ReadAt(fd, 63 * mib, 2 * mib) == std::string(mib, '\0') + data);
  EQUAL(lseek(fd, 0, SEEK_DATA), 64 * mib);
  EQUAL(lseek(fd, 64 * mib, SEEK_HOLE), 65 * mib);
  EQUAL(lseek(fd, 65 * mib, SEEK_DATA), 1024 * mib);
  EQUAL(lseek(fd, 1024 * mib, SEEK_HOLE), 1025 * mib);
  GIVES(ENXIO, lseek(fd, 1025 * mib, SEEK_DATA));
  GIVES(ENXIO, lseek(fd, 1025 * mib, SEEK_HOLE));
}

CASE("sparse", "a file as large as an offset allows") {
  Fd fd(open("file", O_CREAT | O_RDWR, 0644));
  const off_t far = off_t{1} << 42;
  EQUAL(WriteAt(fd, far, "end"), 3);
  EQUAL(Stat("file").st_size, far + 3);
  EQUAL(ReadAt(fd, far - 5, 100), std::string(5, '\0') + "end");
  WORKS(ftruncate(fd, 0));
  EQUAL(Stat("file").st_size, 0);
}

CASE("fallocate", "growing, keeping the size, punching, zeroing") {
  Fd fd(open("file", O_CREAT | O_RDWR, 0644));
  WORKS(fallocate(fd, 0, 0, 10000));
  EQUAL(Stat("file").st_size, 10000);
  CHECK(ReadAt(fd, 0, 20000) == std::string(10000, '\0'));
  WORKS(fallocate(fd, FALLOC_FL_KEEP_SIZE, 10000, 100000));
  EQUAL(Stat("file").st_size, 10000);

  std::string model = Pattern(200'000);
  EQUAL(WriteAt(fd, 0, model), 200'000);
  struct Row {
    const char* name;
    int mode;
    size_t offset, length;
  };
  for (Row row : {Row{"punch of whole blocks", FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 8192, 16384},
                  {"punch inside one block", FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 50001, 100},
                  {"punch across blocks", FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 70001, 10000},
                  {"zero across blocks", FALLOC_FL_ZERO_RANGE, 90001, 12345},
                  {"zero with the size kept", FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, 110000, 4096}}) {
    Context context(row.name);
    WORKS(fallocate(fd, row.mode, row.offset, row.length));
    model.replace(row.offset, row.length, row.length, '\0');
    CHECK(ReadAt(fd, 0, 300'000) == model);
    EQUAL(Stat("file").st_size, 200'000);
  }
  WORKS(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 300'000, 5000));
  EQUAL(Stat("file").st_size, 200'000);
  WORKS(fallocate(fd, FALLOC_FL_ZERO_RANGE, 199'000, 5000));
  EQUAL(Stat("file").st_size, 204'000);
  GIVES(EINVAL, fallocate(fd, 0, 0, 0));
  GIVES(EINVAL, fallocate(fd, 0, -1, 10));
  GIVES(EOPNOTSUPP, fallocate(fd, FALLOC_FL_PUNCH_HOLE, 0, 4096));
}

CASE("fallocate", "collapsing, inserting and unsharing: done, or refused as programs expect it") {
  MakeFile("file", 0644, std::string(100'000, 'a'));
  Fd fd(open("file", O_RDWR));
  for (int mode : {FALLOC_FL_COLLAPSE_RANGE, FALLOC_FL_INSERT_RANGE, FALLOC_FL_UNSHARE_RANGE}) {
    Context context("mode " + std::to_string(mode));
    const off_t before = Stat("file").st_size;
    const int result = fallocate(fd, mode, 0, 4096);
    if (result == 0) continue;
    EQUAL(errno, EOPNOTSUPP);
    EQUAL(Stat("file").st_size, before);
  }
  EQUAL(Content("file").back(), 'a');
}

CASE("open", "O_TMPFILE: a file without a name, or refused as programs expect it") {
  Fd fd(open(".", O_TMPFILE | O_RDWR, 0600));
  if (fd < 0) {
    EQUAL(errno, EOPNOTSUPP);
    return;
  }
  EQUAL(write(fd, "abc", 3), static_cast<ssize_t>(3));
  EQUAL(Names(".").size(), 0u);
  WORKS(linkat(AT_FDCWD, ("/proc/self/fd/" + std::to_string(fd)).c_str(), AT_FDCWD, "named",
               AT_SYMLINK_FOLLOW));
  EQUAL(Content("named"), "abc");
}

CASE("open", "a handle of a file finds it again after everything was closed") {
  MakeFile("file", 0644, "abc");
  MakeDir("dir");
  struct {
    file_handle head;
    char bytes[MAX_HANDLE_SZ];
  } handle, directory;
  handle.head.handle_bytes = directory.head.handle_bytes = MAX_HANDLE_SZ;
  int mount = 0;
  if (name_to_handle_at(AT_FDCWD, "file", &handle.head, &mount, 0) != 0)
    return;  // not every filesystem has them
  WORKS(name_to_handle_at(AT_FDCWD, "dir", &directory.head, &mount, 0));
  for (bool forgotten : {false, true}) {
    Context context(forgotten ? "forgotten" : "known");
    if (forgotten) {
      Fd drop(open("/proc/sys/vm/drop_caches", O_WRONLY));
      if (drop < 0 || write(drop, "2", 1) != 1) return;
    }
    Fd here(open(".", O_RDONLY));
    Fd fd(open_by_handle_at(here, &handle.head, O_RDONLY));
    char bytes[3];
    EQUAL(read(fd, bytes, 3), static_cast<ssize_t>(3));
    Fd dir(open_by_handle_at(here, &directory.head, O_RDONLY));
    CHECK(dir >= 0);
  }
  WORKS(unlink("file"));
  Fd here(open(".", O_RDONLY));
  const int gone = open_by_handle_at(here, &handle.head, O_RDONLY);
  CHECK(gone == -1 && (errno == ESTALE || errno == ENOENT));
}

CASE("copy", "copy_file_range copies any range, within a file and between two") {
  const std::string data = Pattern(500'000);
  MakeFile("from", 0644, data);
  Fd from(open("from", O_RDWR)), to(open("to", O_CREAT | O_RDWR, 0644));
  std::string model;
  struct Row {
    off_t source, target;
    size_t size;
  };
  for (Row row : {Row{0, 0, 100'000}, {1, 4097, 70'001}, {499'000, 200'000, 1000}, {4096, 8192, 8192}}) {
    Context context(std::to_string(row.source) + " to " + std::to_string(row.target));
    off_t source = row.source, target = row.target;
    size_t copied = 0;
    while (copied < row.size) {
      ssize_t step = copy_file_range(from, &source, to, &target, row.size - copied, 0);
      WORKS(step);
      if (step <= 0) break;
      copied += step;
    }
    EQUAL(copied, row.size);
    if (model.size() < row.target + row.size) model.resize(row.target + row.size);
    model.replace(row.target, row.size, data.substr(row.source, row.size));
  }
  CHECK(Content("to") == model);
  off_t end = 500'000, target = 0;
  EQUAL(copy_file_range(from, &end, to, &target, 100, 0), 0);
  off_t source = 0, inside = 300'000;
  EQUAL(copy_file_range(from, &source, from, &inside, 1000, 0), 1000);
  CHECK(ReadAt(from, 300'000, 1000) == data.substr(0, 1000));
}

CASE("sync", "fsync, fdatasync and sync_file_range on files and directories") {
  Fd file(open("file", O_CREAT | O_RDWR, 0644)), dir(open(".", O_RDONLY | O_DIRECTORY));
  EQUAL(WriteAt(file, 0, "content"), 7);
  WORKS(fsync(file));
  WORKS(fdatasync(file));
  WORKS(fsync(dir));
  WORKS(syncfs(dir));
  Fd read_only(open("file", O_RDONLY));
  WORKS(fsync(read_only));
}
