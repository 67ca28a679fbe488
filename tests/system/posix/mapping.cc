// mmap: what mappings, reads and writes see of each other.
#include <sys/mman.h>
#include <unistd.h>

#include <csetjmp>
#include <csignal>
#include <cstring>

#include "check.h"

using namespace posix;

namespace {

constexpr size_t kSize = 64 * 1024;

char* Map(int fd, int protection, int flags, size_t size = kSize) {
  void* memory = mmap(nullptr, size, protection, flags, fd, 0);
  if (!CHECK(memory != MAP_FAILED)) _exit(1);
  return static_cast<char*>(memory);
}

sigjmp_buf back;

// Whether reading the byte raises SIGBUS.
bool Faults(const volatile char* byte) {
  signal(SIGBUS, [](int) { siglongjmp(back, 1); });
  if (sigsetjmp(back, 1)) return true;
  [[maybe_unused]] char value = *byte;
  return false;
}

}  // namespace

CASE("mmap", "a shared mapping and read and write show each other's changes") {
  MakeFile("file", 0644, std::string(kSize, 'a'));
  Fd fd(open("file", O_RDWR));
  char* memory = Map(fd, PROT_READ | PROT_WRITE, MAP_SHARED);
  for (size_t place : {0ul, 1ul, 4095ul, 4096ul, 40000ul, kSize - 1}) {
    Context context("at " + std::to_string(place));
    memory[place] = 'm';
    char byte = 0;
    EQUAL(pread(fd, &byte, 1, place), 1);
    EQUAL(byte, 'm');
    EQUAL(pwrite(fd, "w", 1, place), 1);
    EQUAL(memory[place], 'w');
  }
  WORKS(msync(memory, kSize, MS_SYNC));
  WORKS(munmap(memory, kSize));
  EQUAL(Content("file")[40000], 'w');
}

CASE("mmap", "two processes share one mapping") {
  MakeFile("file", 0644, std::string(kSize, 'a'));
  Fd fd(open("file", O_RDWR));
  char* memory = Map(fd, PROT_READ | PROT_WRITE, MAP_SHARED);
  CHECK(InChild([] {
    Fd own(open("file", O_RDWR));
    char* theirs = Map(own, PROT_READ | PROT_WRITE, MAP_SHARED);
    theirs[5000] = 'c';
    return theirs[0] == 'a';
  }));
  EQUAL(memory[5000], 'c');
}

CASE("mmap", "changes of a private mapping stay private") {
  MakeFile("file", 0644, std::string(kSize, 'a'));
  Fd fd(open("file", O_RDONLY));
  char* memory = Map(fd, PROT_READ | PROT_WRITE, MAP_PRIVATE);
  memset(memory, 'p', kSize);
  WORKS(munmap(memory, kSize));
  CHECK(Content("file") == std::string(kSize, 'a'));
}

CASE("mmap", "what was mapped and written is in the file after the mapping and the descriptor are gone") {
  {
    Fd fd(open("file", O_CREAT | O_RDWR, 0644));
    WORKS(ftruncate(fd, kSize));
    char* memory = Map(fd, PROT_READ | PROT_WRITE, MAP_SHARED);
    WORKS(fd.Close());
    for (size_t i = 0; i < kSize; ++i) memory[i] = static_cast<char>(i * 7);
    WORKS(munmap(memory, kSize));
  }
  const std::string content = Content("file");
  bool right = content.size() == kSize;
  for (size_t i = 0; right && i < kSize; ++i) right = content[i] == static_cast<char>(i * 7);
  CHECK(right);
}

CASE("mmap", "an unlinked file stays mapped") {
  MakeFile("file", 0644, std::string(kSize, 'a'));
  char* memory;
  {
    Fd fd(open("file", O_RDWR));
    memory = Map(fd, PROT_READ | PROT_WRITE, MAP_SHARED);
  }
  WORKS(unlink("file"));
  memory[100] = 'x';
  EQUAL(memory[100], 'x');
  EQUAL(memory[50000], 'a');
  WORKS(munmap(memory, kSize));
}

CASE("mmap", "beyond the end: zeros in the last page, SIGBUS after it") {
  MakeFile("file", 0644, std::string(5000, 'a'));
  Fd fd(open("file", O_RDWR));
  char* memory = Map(fd, PROT_READ | PROT_WRITE, MAP_SHARED);
  EQUAL(memory[4999], 'a');
  EQUAL(memory[5000], '\0');
  CHECK(Faults(memory + 8192));
  WORKS(ftruncate(fd, 1000));
  EQUAL(memory[1000], '\0');
  CHECK(Faults(memory + 4096));
  WORKS(ftruncate(fd, kSize));
  EQUAL(memory[8192], '\0');
}

CASE("mmap", "rights of the descriptor bound those of the mapping") {
  MakeFile("file", 0644, std::string(kSize, 'a'));
  MakeDir("dir");
  Fd read_only(open("file", O_RDONLY)), write_only(open("file", O_WRONLY)), dir(open("dir", O_RDONLY));
  GIVES(EACCES,
        reinterpret_cast<intptr_t>(mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_SHARED, read_only, 0)));
  GIVES(EACCES, reinterpret_cast<intptr_t>(mmap(nullptr, kSize, PROT_READ, MAP_SHARED, write_only, 0)));
  GIVES(ENODEV, reinterpret_cast<intptr_t>(mmap(nullptr, kSize, PROT_READ, MAP_SHARED, dir, 0)));
}

CASE("mmap", "a program on the filesystem runs") {
  WORKS(system("cp /bin/true program && chmod 755 program"));
  EQUAL(system("./program"), 0);
  MakeFile("script", 0755, "#!/bin/sh\nexit 7\n");
  EQUAL(WEXITSTATUS(system("./script")), 7);
  WORKS(chmod("program", 0644));
  EQUAL(WEXITSTATUS(system("./program 2>/dev/null")), 126);
}
