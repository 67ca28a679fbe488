#include "compat/cufile/log.h"

#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string_view>

namespace nacre::cufile {
namespace {

// Never closed: threads may outlive static objects.
std::FILE* Open() {
  const char* where = std::getenv("NACRE_CUFILE_LOG");
  if (where == nullptr || *where == '\0') return nullptr;
  if (std::string_view(where) == "stderr") return stderr;
  std::FILE* file = std::fopen(where, "ae");
  if (file == nullptr) std::fprintf(stderr, "nacre cufile: NACRE_CUFILE_LOG=%s cannot be opened\n", where);
  return file;
}

}  // namespace

void Log(const char* format, ...) {
  static std::mutex& mutex = *new std::mutex;
  static std::FILE* const file = Open();
  if (file == nullptr) return;
  std::lock_guard lock(mutex);
  std::fprintf(file, "nacre cufile[%d]: ", ::getpid());
  va_list arguments;
  va_start(arguments, format);
  std::vfprintf(file, format, arguments);
  va_end(arguments);
  std::fputc('\n', file);
  std::fflush(file);
}

}  // namespace nacre::cufile
