// Life of a process in the background: leaving the terminal, saying when it is ready, and being found again
// by its pid file. Call from the main thread.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

#include "common/status.h"

namespace nacre {

// A file with the pid of the process that holds it locked. The lock goes with the process, so a pid in an
// unlocked file is stale.
class PidFile {
 public:
  // EBUSY if a living process holds it; the message names it.
  static StatusOr<std::unique_ptr<PidFile>> Hold(const std::string& path);
  ~PidFile();  // removes the file
  PidFile(const PidFile&) = delete;
  PidFile& operator=(const PidFile&) = delete;

 private:
  PidFile(std::string path, int file, pid_t owner) : path_(std::move(path)), file_(file), owner_(owner) {}
  std::string path_;
  int file_;
  pid_t owner_;
};

// The living process that holds the pid file. NOT_FOUND if there is none.
StatusOr<pid_t> FindProcess(const std::string& pid_file);

// Waits until this process does not hold the pid file any more (another one may) and has ended. ETIMEDOUT if
// it still holds it after `seconds`.
Status WaitForProcess(const std::string& pid_file, pid_t process, int seconds);

// SIGTERM, then waits until the process is gone. ETIMEDOUT if it takes longer than `seconds`.
Status EndProcess(const std::string& pid_file, int seconds);

// Splits off a process that goes on in the background with its messages in the log file. In the child:
// returns. In the parent: waits until the child says Ready or Failed or dies, prints what it says, and exits
// with its status. A parent that is interrupted meanwhile (SIGINT, SIGTERM, SIGHUP) ends the child first.
class Background {
 public:
  // Not in the background: Ready prints, Failed prints to stderr.
  static std::unique_ptr<Background> Foreground();
  // Errors are those of the log file.
  static StatusOr<std::unique_ptr<Background>> Fork(const std::string& log_file);
  ~Background();

  // Before Ready or Failed: for whoever waits. Not in the background: nothing, the log goes to the terminal.
  void Note(const std::string& message);
  void Ready(const std::string& message);
  int Failed(const Status& status);  // returns the exit status for main

 private:
  explicit Background(int pipe) : pipe_(pipe) {}
  void Tell(char kind, const std::string& message);
  int pipe_ = -1;
};

// Tells systemd (NOTIFY_SOCKET), if it is there: "READY=1", "STOPPING=1", ...
void NotifySystemd(const std::string& state);

}  // namespace nacre
