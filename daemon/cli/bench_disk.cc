#include <absl/strings/str_format.h>
#include <stdlib.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "common/runtime.h"
#include "daemon/cli/bench_target.h"
#include "server/object/uring_block_store.h"

namespace nacre::cli {
namespace {

class DiskTarget : public BenchTarget {
 public:
  explicit DiskTarget(std::string directory) : directory_(std::move(directory)), runtime_(1) {}
  ~DiskTarget() override {
    runtime_.Stop();
    blocks_.reset();
    std::error_code error;
    std::filesystem::remove_all(directory_, error);
  }

  Status Open(uint64_t size) {
    UringBlockStoreOptions options;
    options.size_bytes = size;
    ASSIGN_OR_RETURN(blocks_, OpenUringBlockStore(directory_, options));
    return OkStatus();
  }

  Status Write(uint64_t offset, std::span<const std::byte> data) override {
    std::array<std::span<const std::byte>, 1> buffers = {data};
    return runtime_.Run(blocks_->Write(offset / kBlockSize, buffers));
  }
  Status Read(uint64_t offset, std::span<std::byte> data) override {
    std::array<std::span<std::byte>, 1> buffers = {data};
    return runtime_.Run(blocks_->Read(offset / kBlockSize, buffers));
  }
  Status Sync() override { return runtime_.Run(blocks_->Flush()); }
  Status DropCaches() override { return OkStatus(); }  // O_DIRECT: there are none

  Status Create(uint64_t) override { return None(); }
  Status Stat(uint64_t) override { return None(); }
  Status Unlink(uint64_t) override { return None(); }

 private:
  static Status None() { return ErrnoError(EOPNOTSUPP, "a disk has no files"); }

  const std::string directory_;
  Runtime runtime_;
  std::unique_ptr<BlockStore> blocks_;
};

}  // namespace

StatusOr<std::unique_ptr<BenchTarget>> MakeDiskTarget(const std::string& directory, uint64_t size) {
  std::string own = directory + "/nacre-bench.XXXXXX";
  if (::mkdtemp(own.data()) == nullptr) {
    return ErrnoError(errno,
                      absl::StrFormat("cannot make a directory in %s: %s", directory, std::strerror(errno)));
  }
  auto target = std::make_unique<DiskTarget>(own);
  RETURN_IF_ERROR(target->Open(size));
  return target;
}

}  // namespace nacre::cli
