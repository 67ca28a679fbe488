#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "daemon/cli/bench_target.h"

namespace nacre::cli {
namespace {

class MountTarget : public BenchTarget {
 public:
  explicit MountTarget(std::string directory) : directory_(std::move(directory)) {}
  ~MountTarget() override {
    if (file_ >= 0) ::close(file_);
    std::error_code error;
    std::filesystem::remove_all(directory_, error);
  }

  Status Open() {
    file_ = ::open((directory_ + "/data").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    return file_ >= 0 ? OkStatus() : Error("data");
  }

  Status Write(uint64_t offset, std::span<const std::byte> data) override {
    ssize_t done = ::pwrite(file_, data.data(), data.size(), static_cast<off_t>(offset));
    return done == static_cast<ssize_t>(data.size()) ? OkStatus() : Error("data");
  }
  Status Read(uint64_t offset, std::span<std::byte> data) override {
    ssize_t done = ::pread(file_, data.data(), data.size(), static_cast<off_t>(offset));
    return done == static_cast<ssize_t>(data.size()) ? OkStatus() : Error("data");
  }
  Status Sync() override { return ::fsync(file_) == 0 ? OkStatus() : Error("data"); }
  Status DropCaches() override {
    return ::posix_fadvise(file_, 0, 0, POSIX_FADV_DONTNEED) == 0 ? OkStatus() : Error("data");
  }

  Status Create(uint64_t number) override {
    int file = ::open(Name(number).c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file < 0) return Error(absl::StrCat(number));
    ::close(file);
    return OkStatus();
  }
  Status Stat(uint64_t number) override {
    struct stat attributes;
    return ::stat(Name(number).c_str(), &attributes) == 0 ? OkStatus() : Error(absl::StrCat(number));
  }
  Status Unlink(uint64_t number) override {
    return ::unlink(Name(number).c_str()) == 0 ? OkStatus() : Error(absl::StrCat(number));
  }

 private:
  std::string Name(uint64_t number) const { return absl::StrCat(directory_, "/", number); }
  Status Error(const std::string& name) const {
    const int error = errno != 0 ? errno : EIO;
    return ErrnoError(error, absl::StrFormat("%s/%s: %s", directory_, name, std::strerror(error)));
  }

  const std::string directory_;
  int file_ = -1;
};

}  // namespace

StatusOr<std::unique_ptr<BenchTarget>> MakeMountTarget(const std::string& directory) {
  std::string own = directory + "/nacre-bench.XXXXXX";
  if (::mkdtemp(own.data()) == nullptr) {
    return ErrnoError(errno,
                      absl::StrFormat("cannot make a directory in %s: %s", directory, std::strerror(errno)));
  }
  auto target = std::make_unique<MountTarget>(own);
  RETURN_IF_ERROR(target->Open());
  return target;
}

}  // namespace nacre::cli
