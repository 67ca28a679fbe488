// Programs under test: started with their output caught, ended by pid, temporary directories that go away.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace nacre {

struct Ended {
  int exit = -1;       // 128 + the signal's number if one ended it
  std::string output;  // stdout and stderr together
};

// Where the programs of the build are; NACRE_BIN names another place.
std::string BinDirectory();

// One process; killed by the destructor if it still runs.
class Program {
 public:
  // The first word is a program of the build or a path. Ends the test process if it cannot be started.
  explicit Program(std::vector<std::string> words);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  void Signal(int signal) const;
  void Stop() const;  // as by SIGSTOP; it stands still when this returns
  Ended Wait();       // for its end
  // Reads its output until the text is in it, or to its end.
  std::string ReadUntil(const std::string& text);

 private:
  pid_t pid_ = -1;
  int output_ = -1;
};

Ended RunProgram(std::vector<std::string> words);

// The command line of a server as the one that makes its targets.
std::vector<std::string> Formatting(std::vector<std::string> words);

class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace nacre
