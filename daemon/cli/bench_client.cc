#include <absl/strings/str_cat.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "client/filesystem.h"
#include "common/random.h"
#include "common/runtime.h"
#include "daemon/cli/bench_target.h"
#include "rpc/convert.h"
#include "rpc/grpc_channel.h"
#include "transport/data_plane.h"

namespace nacre::cli {
namespace {

class ClientTarget : public BenchTarget {
 public:
  ClientTarget() : runtime_(2), transport_(MakeDataPlane(runtime_.executor(), RealClock(), "auto").value()) {}

  ~ClientTarget() override {
    if (filesystem_ != nullptr) End();
    runtime_.Stop();
  }

  Status Start(const std::string& mds) {
    ASSIGN_OR_RETURN(std::shared_ptr<MetadataConnector> metadata, NewGrpcConnector(mds));
    client::Environment environment{runtime_.executor(), RealClock(), SystemRandom(), *transport_,
                                    std::move(metadata)};
    client::Options options;
    options.name = absl::StrCat("nacre bench, process ", ::getpid());
    ASSIGN_OR_RETURN(filesystem_,
                     runtime_.Run(client::FileSystem::Mount(std::move(environment), std::move(options))));
    ASSIGN_OR_RETURN(client::Known made,
                     runtime_.Run(filesystem_->Mknod(caller_, kRootFid, directory_name_, S_IFDIR | 0700, 0)));
    directory_ = FromProto(made.attr.fid());
    ASSIGN_OR_RETURN(client::Created data,
                     runtime_.Run(filesystem_->Create(caller_, directory_, "data", 0600, O_RDWR)));
    data_ = data.handle;
    ASSIGN_OR_RETURN(region_, transport_->Register(memory_.data(), memory_.size()));
    return OkStatus();
  }

  Status Write(uint64_t offset, std::span<const std::byte> data) override {
    std::array<std::span<const std::byte>, 1> pieces = {data};
    return runtime_.Run(filesystem_->Write(data_, offset, pieces)).status();
  }
  Status Read(uint64_t offset, std::span<std::byte> data) override {
    ASSIGN_OR_RETURN(client::ReadResult result, runtime_.Run(filesystem_->Read(data_, offset, data.size())));
    if (result.size != data.size()) return ErrnoError(EIO, "a read came back short");
    for (const auto& piece : result.pieces) {
      std::memcpy(data.data(), piece.data(), piece.size());
      data = data.subspan(piece.size());
    }
    return OkStatus();
  }
  Status ReadAtOnce(uint64_t operations) override {
    std::atomic<int64_t> left = static_cast<int64_t>(operations);
    std::vector<Task<Status>> lanes;
    for (size_t i = 0; i < std::min<uint64_t>(operations, kAtOnce); ++i) {
      client::ReadPiece piece{i * kReadSize, {region_, i * kReadSize, kReadSize}};
      lanes.push_back(Lane(filesystem_.get(), data_, std::move(piece), &left));
    }
    for (const Status& ended : runtime_.Run(WhenAll(std::move(lanes)))) RETURN_IF_ERROR(ended);
    return OkStatus();
  }
  Status Sync() override { return runtime_.Run(filesystem_->Fsync(data_, false)); }
  // The client has no way to forget alone: its cache is smaller than what bench writes, or the figures are
  // the cache's.
  Status DropCaches() override { return OkStatus(); }

  Status Create(uint64_t number) override {
    ASSIGN_OR_RETURN(client::Created made,
                     runtime_.Run(filesystem_->Create(caller_, directory_, absl::StrCat(number), 0600,
                                                      O_WRONLY | O_EXCL)));
    return runtime_.Run(filesystem_->Release(made.handle));
  }
  Status Stat(uint64_t number) override {
    Duration negative{0};
    return runtime_.Run(filesystem_->Lookup(caller_, directory_, absl::StrCat(number), &negative)).status();
  }
  Status Unlink(uint64_t number) override {
    return runtime_.Run(filesystem_->Unlink(caller_, directory_, absl::StrCat(number)));
  }

 private:
  static constexpr uint64_t kReadSize = 1 << 20;

  static Task<Status> Lane(client::FileSystem* filesystem, client::HandlePtr file, client::ReadPiece piece,
                           std::atomic<int64_t>* left) {
    while (--*left >= 0) {
      std::vector<client::ReadPiece> pieces(1, piece);
      CO_ASSIGN_OR_RETURN(client::PiecesRead read,
                          co_await filesystem->ReadInto(file, std::move(pieces), nullptr));
      if (read.sizes.front() != kReadSize) co_return ErrnoError(EIO, "a read came back short");
      if (!read.verified) co_return ErrnoError(EIO, "a read was not verified");
    }
    co_return OkStatus();
  }

  void End() {
    Status ended = OkStatus();
    if (data_ != nullptr) ended.Update(runtime_.Run(filesystem_->Release(data_)));
    ended.Update(runtime_.Run(filesystem_->Unlink(caller_, directory_, "data")));
    ended.Update(runtime_.Run(filesystem_->Rmdir(caller_, kRootFid, directory_name_)));
    ended.Update(runtime_.Run(filesystem_->Unmount()));
    if (!ended.ok()) std::fprintf(stderr, "nacre: cleaning up: %s\n", std::string(ended.message()).c_str());
  }

  Runtime runtime_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<client::FileSystem> filesystem_;
  const client::Caller caller_;
  const std::string directory_name_ = absl::StrCat("nacre-bench.", ::getpid());
  Fid directory_;
  client::HandlePtr data_;
  std::vector<std::byte> memory_ = std::vector<std::byte>(kAtOnce * kReadSize);
  std::shared_ptr<MemoryRegion> region_;
};

}  // namespace

StatusOr<std::unique_ptr<BenchTarget>> MakeClientTarget(const std::string& mds) {
  auto target = std::make_unique<ClientTarget>();
  RETURN_IF_ERROR(target->Start(mds));
  return target;
}

}  // namespace nacre::cli
