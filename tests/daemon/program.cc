#include "tests/daemon/program.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>

namespace nacre {
namespace {

std::string FindProgram(const std::string& word) {
  return word.find('/') == std::string::npos ? BinDirectory() + "/" + word : word;
}

}  // namespace

std::string BinDirectory() {
  const char* named = std::getenv("NACRE_BIN");
  return named == nullptr ? NACRE_BIN_DIR : named;
}

Program::Program(std::vector<std::string> words) {
  words[0] = FindProgram(words[0]);
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  int pipe[2];
  if (::pipe2(pipe, O_CLOEXEC) != 0) std::abort();
  pid_ = ::fork();
  if (pid_ < 0) std::abort();
  if (pid_ == 0) {
    ::dup2(pipe[1], STDOUT_FILENO);
    ::dup2(pipe[1], STDERR_FILENO);
    ::execv(arguments[0], arguments.data());
    std::perror(arguments[0]);
    ::_exit(127);
  }
  ::close(pipe[1]);
  output_ = pipe[0];
}

Program::~Program() {
  if (pid_ < 0) return;
  Signal(SIGKILL);
  Wait();
}

void Program::Signal(int signal) const { ::kill(pid_, signal); }

void Program::Stop() const {
  Signal(SIGSTOP);
  int status = 0;
  ::waitpid(pid_, &status, WUNTRACED);
}

Ended Program::Wait() {
  Ended ended;
  char buffer[4096];
  ssize_t size = 0;
  while ((size = ::read(output_, buffer, sizeof buffer)) > 0)
    ended.output.append(buffer, static_cast<size_t>(size));
  ::close(output_);
  int status = 0;
  ::waitpid(pid_, &status, 0);
  pid_ = -1;
  ended.exit = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return ended;
}

std::string Program::ReadUntil(const std::string& text) {
  std::string said;
  char byte;
  while (said.find(text) == std::string::npos && ::read(output_, &byte, 1) == 1) said += byte;
  return said;
}

Ended RunProgram(std::vector<std::string> words) { return Program(std::move(words)).Wait(); }

std::vector<std::string> Formatting(std::vector<std::string> words) {
  words.push_back("--format");
  return words;
}

TemporaryDirectory::TemporaryDirectory() {
  path_ = std::filesystem::temp_directory_path() / "nacre-daemon.XXXXXX";
  if (::mkdtemp(path_.data()) == nullptr) std::abort();
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code error;
  std::filesystem::remove_all(path_, error);
}

}  // namespace nacre
