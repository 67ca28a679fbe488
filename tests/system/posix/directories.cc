// Listing directories: complete, each name once, types right, and stable while others change them. FIFOs and
// sockets as files in them.
#include <dirent.h>
#include <sys/socket.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <set>

#include "check.h"

using namespace posix;

namespace {

using Stream = std::unique_ptr<DIR, int (*)(DIR*)>;

Stream Open(const char* path) { return Stream(opendir(path), &closedir); }

std::map<std::string, int> CountAll(DIR* stream) {
  std::map<std::string, int> seen;
  while (const dirent* entry = readdir(stream)) ++seen[entry->d_name];
  return seen;
}

}  // namespace

CASE("readdir", "every entry once, with its type and inode number") {
  MakeFile("file");
  MakeDir("dir");
  WORKS(symlink("file", "link"));
  WORKS(mkfifo("fifo", 0644));
  WORKS(mknod("socket", S_IFSOCK | 0644, 0));
  WORKS(mknod("char", S_IFCHR | 0644, makedev(1, 3)));
  const std::map<std::string, int> types = {{".", DT_DIR},       {"..", DT_DIR},   {"file", DT_REG},
                                            {"dir", DT_DIR},     {"link", DT_LNK}, {"fifo", DT_FIFO},
                                            {"socket", DT_SOCK}, {"char", DT_CHR}};
  Stream stream = Open(".");
  size_t count = 0;
  while (const dirent* entry = readdir(stream.get())) {
    Context context(entry->d_name);
    auto expected = types.find(entry->d_name);
    if (!CHECK(expected != types.end())) continue;
    ++count;
    EQUAL(static_cast<int>(entry->d_type), expected->second);
    EQUAL(entry->d_ino, Stat(entry->d_name).st_ino);
  }
  EQUAL(count, types.size());
}

CASE("readdir", "three thousand entries, names short and long") {
  std::set<std::string> made = {".", ".."};
  for (int i = 0; i < 3000; ++i) {
    std::string name = std::to_string(i) + (i % 10 == 0 ? std::string(200, 'x') : "");
    MakeFile(name);
    made.insert(name);
  }
  auto seen = CountAll(Open(".").get());
  EQUAL(seen.size(), made.size());
  for (const auto& [name, times] : seen) {
    if (times != 1 || !made.contains(name)) CHECK(!"a name twice, or one that was never made");
  }
}

CASE("readdir", "what stays is listed exactly once while the rest comes and goes") {
  for (int i = 0; i < 1500; ++i) MakeFile("stays" + std::to_string(i));
  for (int i = 0; i < 500; ++i) MakeFile("goes" + std::to_string(i));
  Stream stream = Open(".");
  std::map<std::string, int> seen;
  for (int turn = 0; const dirent* entry = readdir(stream.get()); ++turn) {
    ++seen[entry->d_name];
    if (turn < 500) {
      WORKS(unlink(("goes" + std::to_string(turn)).c_str()));
      MakeFile("comes" + std::to_string(turn));
    }
  }
  for (int i = 0; i < 1500; ++i) {
    const std::string name = "stays" + std::to_string(i);
    if (seen[name] != 1) {
      Context context(name);
      EQUAL(seen[name], 1);
    }
  }
  for (const auto& [name, times] : seen) {
    Context context(name);
    if (times > 1) EQUAL(times, 1);
  }
}

CASE("readdir", "a directory is emptied by reading and unlinking in one pass") {
  MakeDir("dir");
  for (int i = 0; i < 1000; ++i) MakeFile("dir/" + std::to_string(i));
  Stream stream = Open("dir");
  while (const dirent* entry = readdir(stream.get())) {
    if (entry->d_name[0] != '.') WORKS(unlinkat(dirfd(stream.get()), entry->d_name, 0));
  }
  EQUAL(Names("dir").size(), 0u);
  WORKS(rmdir("dir"));
}

CASE("readdir", "telldir and seekdir come back to any place") {
  for (int i = 0; i < 300; ++i) MakeFile(std::to_string(i));
  Stream stream = Open(".");
  std::vector<std::pair<long, std::string>> places;
  for (;;) {
    const long place = telldir(stream.get());
    const dirent* entry = readdir(stream.get());
    if (!entry) break;
    places.emplace_back(place, entry->d_name);
  }
  EQUAL(places.size(), 302u);
  for (size_t i = 0; i < places.size(); i += 37) {
    const auto& [place, name] = places[places.size() - 1 - i];
    seekdir(stream.get(), place);
    const dirent* entry = readdir(stream.get());
    if (CHECK(entry)) EQUAL(std::string(entry->d_name), name);
  }
}

CASE("readdir", "rewinddir shows what was made since") {
  MakeFile("old");
  Stream stream = Open(".");
  CountAll(stream.get());
  MakeFile("new");
  WORKS(unlink("old"));
  rewinddir(stream.get());
  auto seen = CountAll(stream.get());
  EQUAL(seen.count("new"), 1u);
  EQUAL(seen.count("old"), 0u);
}

CASE("readdir", "a directory that was removed while open lists nothing") {
  MakeDir("dir");
  Stream stream = Open("dir");
  WORKS(rmdir("dir"));
  CHECK(CountAll(stream.get()).size() <= 2);
}

CASE("readdir", "each change shows in the next listing at once") {
  for (int i = 0; i < 50; ++i) {
    const std::string name = "n" + std::to_string(i);
    MakeFile(name);
    EQUAL(Names(".").size(), 1u);
    WORKS(rename(name.c_str(), (name + "r").c_str()));
    CHECK(Names(".") == std::vector<std::string>{name + "r"});
    WORKS(unlink((name + "r").c_str()));
    EQUAL(Names(".").size(), 0u);
  }
}

CASE("names at once", "a missing name is seen as soon as another process makes it") {
  struct stat attr;
  for (int i = 0; i < 20; ++i) {
    const std::string name = std::to_string(i);
    GIVES(ENOENT, stat(name.c_str(), &attr));
    CHECK(InChild([&] {
      MakeFile(name);
      return true;
    }));
    WORKS(stat(name.c_str(), &attr));
    CHECK(InChild([&] { return unlink(name.c_str()) == 0; }));
    GIVES(ENOENT, stat(name.c_str(), &attr));
  }
}

CASE("names at once", "of many that create one name exclusively, one wins") {
  for (int round = 0; round < 20; ++round) {
    const std::string name = "round" + std::to_string(round);
    for (int i = 0; i < 4; ++i) {
      if (fork() == 0)
        _exit(open(name.c_str(), O_CREAT | O_EXCL | O_WRONLY, 0644) >= 0 ? 0 : errno == EEXIST ? 1 : 2);
    }
    int won = 0, lost = 0;
    for (int i = 0, status; i < 4; ++i) {
      wait(&status);
      won += WEXITSTATUS(status) == 0;
      lost += WEXITSTATUS(status) == 1;
    }
    EQUAL(won, 1);
    EQUAL(lost, 3);
  }
}

CASE("special", "bytes go through a fifo") {
  WORKS(mkfifo("fifo", 0644));
  pid_t pid = fork();
  if (pid == 0) {
    int fd = open("fifo", O_WRONLY);
    _exit(write(fd, "through", 7) == 7 ? 0 : 1);
  }
  Fd fd(open("fifo", O_RDONLY));
  char buffer[7];
  EQUAL(read(fd, buffer, 7), 7);
  EQUAL(std::string(buffer, 7), "through");
  waitpid(pid, nullptr, 0);
  EQUAL(Stat("fifo").st_size, 0);
}

CASE("special", "a fifo asks for permission like a file") {
  WORKS(mkfifo("fifo", 0640));
  WORKS(mkfifo("mine", 0200));
  Give("mine", kAlice);
  As user(kAlice);
  GIVES(EACCES, open("fifo", O_RDONLY | O_NONBLOCK));
  GIVES(EACCES, open("fifo", O_WRONLY | O_NONBLOCK));
  GIVES(EACCES, open("fifo", O_RDWR));
  GIVES(EACCES, open("mine", O_RDONLY | O_NONBLOCK));
  GIVES(ENXIO, open("mine", O_WRONLY | O_NONBLOCK));
}

CASE("special", "a socket is bound and reached by its name") {
  int server = socket(AF_UNIX, SOCK_STREAM, 0), client = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = "socket"};
  const auto* generic = reinterpret_cast<const sockaddr*>(&address);
  WORKS(bind(server, generic, sizeof(address)));
  CHECK(S_ISSOCK(Stat("socket").st_mode));
  WORKS(listen(server, 1));
  WORKS(connect(client, generic, sizeof(address)));
  GIVES(EADDRINUSE, bind(client, generic, sizeof(address)));
  WORKS(unlink("socket"));
  Fd again(socket(AF_UNIX, SOCK_STREAM, 0));
  GIVES(ENOENT, connect(again, generic, sizeof(address)));
  close(server);
  close(client);
}
