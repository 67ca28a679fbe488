// flock, fcntl and open-file-description locks between processes.
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "check.h"

using namespace posix;

namespace {

struct flock Range(short type, off_t start, off_t length) {
  struct flock range = {};
  range.l_type = type;
  range.l_whence = SEEK_SET;
  range.l_start = start;
  range.l_len = length;
  return range;
}

int Lock(int fd, short type, off_t start, off_t length, int command = F_SETLK) {
  struct flock range = Range(type, start, length);
  return fcntl(fd, command, &range);
}

// The error with which another process gets the lock on `path`; 0 if it does.
int OtherGets(const char* path, short type, off_t start, off_t length) {
  int error = 0;
  for (int wanted : {0, EAGAIN, EACCES}) {
    bool same = InChild([&] {
      int fd = open(path, O_RDWR);
      return (Lock(fd, type, start, length) == 0 ? 0 : errno) == wanted;
    });
    if (same) return wanted;
    error = -1;
  }
  return error;
}

int OtherFlocks(const char* path, int operation) {
  for (int wanted : {0, EWOULDBLOCK}) {
    if (InChild([&] {
          int fd = open(path, O_RDWR);
          return (flock(fd, operation | LOCK_NB) == 0 ? 0 : errno) == wanted;
        }))
      return wanted;
  }
  return -1;
}

}  // namespace

CASE("flock", "shared with shared, exclusive with nothing, between descriptors and processes") {
  MakeFile("file");
  Fd fd(open("file", O_RDWR)), second(open("file", O_RDWR));
  WORKS(flock(fd, LOCK_SH));
  EQUAL(OtherFlocks("file", LOCK_SH), 0);
  EQUAL(OtherFlocks("file", LOCK_EX), EWOULDBLOCK);
  WORKS(flock(second, LOCK_SH | LOCK_NB));
  GIVES(EWOULDBLOCK, flock(fd, LOCK_EX | LOCK_NB));
  WORKS(flock(second, LOCK_UN));
  WORKS(flock(fd, LOCK_EX | LOCK_NB));
  EQUAL(OtherFlocks("file", LOCK_SH), EWOULDBLOCK);
  GIVES(EWOULDBLOCK, flock(second, LOCK_SH | LOCK_NB));
  WORKS(flock(fd, LOCK_UN));
  EQUAL(OtherFlocks("file", LOCK_EX), 0);
}

CASE("flock", "goes with the last copy of the descriptor, not before") {
  MakeFile("file");
  Fd fd(open("file", O_RDWR));
  int copy = dup(fd);
  WORKS(flock(fd, LOCK_EX));
  WORKS(fd.Close());
  EQUAL(OtherFlocks("file", LOCK_EX), EWOULDBLOCK);
  WORKS(close(copy));
  // Waiting: through FUSE the kernel tells of the close some time after it.
  EQUAL(InChild([] { return flock(open("file", O_RDWR), LOCK_EX) == 0; }), true);
}

CASE("flock", "a waiting process gets it when it is free") {
  MakeFile("file");
  Fd fd(open("file", O_RDWR));
  WORKS(flock(fd, LOCK_EX));
  int ready[2];
  WORKS(pipe(ready));
  pid_t pid = fork();
  if (pid == 0) {
    int own = open("file", O_RDWR);
    if (write(ready[1], "r", 1) != 1) _exit(2);
    _exit(flock(own, LOCK_EX) == 0 ? 0 : 1);
  }
  char byte;
  EQUAL(read(ready[0], &byte, 1), 1);
  LetTimePass();
  int status;
  EQUAL(waitpid(pid, &status, WNOHANG), 0);
  WORKS(flock(fd, LOCK_UN));
  EQUAL(waitpid(pid, &status, 0), pid);
  EQUAL(status, 0);
}

CASE("fcntl locks", "ranges conflict where they overlap and one of them writes") {
  MakeFile("file", 0644, std::string(1000, 'x'));
  struct Row {
    short held, wanted;
    off_t start, length;
    bool conflict;
  };
  const Row rows[] = {
      {F_WRLCK, F_WRLCK, 100, 100, true}, {F_WRLCK, F_RDLCK, 100, 100, true},
      {F_RDLCK, F_WRLCK, 100, 100, true}, {F_RDLCK, F_RDLCK, 100, 100, false},
      {F_WRLCK, F_WRLCK, 0, 100, false},  {F_WRLCK, F_WRLCK, 0, 101, true},
      {F_WRLCK, F_WRLCK, 199, 1, true},   {F_WRLCK, F_WRLCK, 200, 100, false},
      {F_WRLCK, F_WRLCK, 0, 0, true},     {F_WRLCK, F_WRLCK, 200, 0, false},
      {F_WRLCK, F_WRLCK, 150, 0, true},   {F_WRLCK, F_WRLCK, 5000, 10, false},
  };
  for (const Row& row : rows) {
    Context context("range " + std::to_string(row.start) + "+" + std::to_string(row.length));
    Fd fd(open("file", O_RDWR));
    WORKS(Lock(fd, row.held, 100, 100));
    EQUAL(OtherGets("file", row.wanted, row.start, row.length), row.conflict ? EAGAIN : 0);
  }
}

CASE("fcntl locks", "a process never conflicts with itself; its locks merge, split and change kind") {
  MakeFile("file");
  Fd fd(open("file", O_RDWR));
  WORKS(Lock(fd, F_WRLCK, 0, 300));
  WORKS(Lock(fd, F_WRLCK, 100, 100));
  WORKS(Lock(fd, F_UNLCK, 100, 100));
  EQUAL(OtherGets("file", F_WRLCK, 100, 100), 0);
  EQUAL(OtherGets("file", F_WRLCK, 99, 1), EAGAIN);
  EQUAL(OtherGets("file", F_WRLCK, 200, 1), EAGAIN);
  WORKS(Lock(fd, F_RDLCK, 0, 100));
  EQUAL(OtherGets("file", F_RDLCK, 0, 100), 0);
  EQUAL(OtherGets("file", F_WRLCK, 50, 1), EAGAIN);
  WORKS(Lock(fd, F_UNLCK, 0, 0));
  EQUAL(OtherGets("file", F_WRLCK, 0, 0), 0);
}

CASE("fcntl locks", "F_GETLK names the first conflict and its holder") {
  MakeFile("file");
  Fd fd(open("file", O_RDWR));
  WORKS(Lock(fd, F_WRLCK, 100, 50));
  const pid_t holder = getpid();
  CHECK(InChild([holder] {
    int own = open("file", O_RDWR);
    struct flock range = Range(F_RDLCK, 0, 0);
    return fcntl(own, F_GETLK, &range) == 0 && range.l_type == F_WRLCK && range.l_start == 100 &&
           range.l_len == 50 && range.l_pid == holder;
  }));
  CHECK(InChild([] {
    int own = open("file", O_RDWR);
    struct flock range = Range(F_WRLCK, 0, 100);
    return fcntl(own, F_GETLK, &range) == 0 && range.l_type == F_UNLCK;
  }));
}

CASE("fcntl locks", "closing any descriptor of the file ends all of the process's locks on it") {
  MakeFile("file");
  Fd fd(open("file", O_RDWR));
  WORKS(Lock(fd, F_WRLCK, 0, 0));
  EQUAL(OtherGets("file", F_WRLCK, 0, 1), EAGAIN);
  WORKS(close(open("file", O_RDONLY)));
  EQUAL(OtherGets("file", F_WRLCK, 0, 1), 0);
}

CASE("fcntl locks", "a killed process loses its locks") {
  MakeFile("file");
  int ready[2];
  WORKS(pipe(ready));
  pid_t pid = fork();
  if (pid == 0) {
    int own = open("file", O_RDWR);
    if (Lock(own, F_WRLCK, 0, 0) != 0 || flock(own, LOCK_EX) != 0 || write(ready[1], "r", 1) != 1) _exit(1);
    pause();
  }
  char byte;
  EQUAL(read(ready[0], &byte, 1), 1);
  EQUAL(OtherGets("file", F_WRLCK, 0, 1), EAGAIN);
  EQUAL(OtherFlocks("file", LOCK_EX), EWOULDBLOCK);
  kill(pid, SIGKILL);
  int status;
  EQUAL(waitpid(pid, &status, 0), pid);
  Fd fd(open("file", O_RDWR));
  WORKS(Lock(fd, F_WRLCK, 0, 0, F_SETLKW));  // a daemon may learn of the end a little later than we do
  WORKS(flock(fd, LOCK_EX));
}

CASE("fcntl locks", "a lock wants a descriptor that may do what it says") {
  MakeFile("file");
  Fd read_only(open("file", O_RDONLY)), write_only(open("file", O_WRONLY));
  GIVES(EBADF, Lock(read_only, F_WRLCK, 0, 1));
  GIVES(EBADF, Lock(write_only, F_RDLCK, 0, 1));
  WORKS(Lock(read_only, F_RDLCK, 0, 1));
  GIVES(EINVAL, Lock(read_only, F_RDLCK, -5, 1));
}

CASE("fcntl locks", "waiting ends with the lock, or with a signal") {
  MakeFile("file");
  Fd fd(open("file", O_RDWR));
  WORKS(Lock(fd, F_WRLCK, 0, 10));
  CHECK(InChild([] {
    struct sigaction interrupt = {};
    interrupt.sa_handler = [](int) {};
    sigaction(SIGALRM, &interrupt, nullptr);
    int own = open("file", O_RDWR);
    alarm(1);
    return Lock(own, F_WRLCK, 5, 1, F_SETLKW) == -1 && errno == EINTR;
  }));
  pid_t pid = fork();
  if (pid == 0) {
    int own = open("file", O_RDWR);
    _exit(Lock(own, F_WRLCK, 5, 1, F_SETLKW) == 0 ? 0 : 1);
  }
  LetTimePass();
  WORKS(Lock(fd, F_UNLCK, 0, 10));
  int status;
  EQUAL(waitpid(pid, &status, 0), pid);
  EQUAL(status, 0);
}

CASE("OFD locks", "belong to the open file, not to the process") {
  MakeFile("file");
  Fd fd(open("file", O_RDWR)), second(open("file", O_RDWR));
  WORKS(Lock(fd, F_WRLCK, 0, 10, F_OFD_SETLK));
  GIVES(EAGAIN, Lock(second, F_WRLCK, 5, 1, F_OFD_SETLK));
  WORKS(Lock(second, F_WRLCK, 10, 1, F_OFD_SETLK));
  WORKS(fd.Close());
  // Waiting: through FUSE the kernel tells of the close some time after it.
  WORKS(Lock(second, F_WRLCK, 5, 1, F_OFD_SETLKW));
}
