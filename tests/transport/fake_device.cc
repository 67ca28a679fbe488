#include "tests/transport/fake_device.h"

#include <absl/strings/str_cat.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "common/crc32c.h"
#include "transport/memory.h"

namespace nacre {
namespace {

constexpr size_t kStagingSize = 10'000;  // odd, so that puts are cut

std::byte* MapOrDie(int fd, size_t size, int protection) {
  void* at = ::mmap(nullptr, size, protection, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) std::abort();
  return static_cast<std::byte*>(at);
}

}  // namespace

FakeDevice::FakeDevice(size_t size)
    : size_(size), mapped_((size + kTrialBytes - 1) / kTrialBytes * kTrialBytes + kTrialBytes) {
  fd_ = ::memfd_create("nacre-fake-device", MFD_CLOEXEC);
  if (fd_ < 0 || ::ftruncate(fd_, static_cast<off_t>(mapped_)) != 0) std::abort();
  data_ = MapOrDie(fd_, mapped_, PROT_NONE);
  alias_ = MapOrDie(fd_, mapped_, PROT_READ | PROT_WRITE);
}

FakeDevice::~FakeDevice() {
  ::munmap(data_, mapped_);
  ::munmap(alias_, mapped_);
  ::close(fd_);
}

void FakeDevice::Hold() {
  std::lock_guard lock(mutex_);
  held_ = true;
}

void FakeDevice::HoldPins() {
  std::lock_guard lock(mutex_);
  pins_held_ = true;
}

void FakeDevice::Resume() {
  std::vector<OneShot<Unit>> waiters;
  {
    std::lock_guard lock(mutex_);
    held_ = pins_held_ = false;
    waiters.swap(waiters_);
  }
  for (const auto& waiter : waiters) waiter.Set({});
}

Task<void> FakeDevice::Turn(bool FakeDevice::*held) {
  const OneShot<Unit> turn;
  {
    std::lock_guard lock(mutex_);
    if (!(this->*held)) co_return;
    waiters_.push_back(turn);
  }
  ++waiting_;
  co_await turn.Wait();
  --waiting_;
}

std::vector<iovec> FakeDevice::Seen(std::vector<iovec> pieces) const {
  for (iovec& piece : pieces) piece.iov_base = alias_ + (static_cast<std::byte*>(piece.iov_base) - data_);
  return pieces;
}

Task<Status> FakeDevice::CopyIn(std::vector<iovec> to, std::vector<iovec> from) {
  co_await Turn(&FakeDevice::held_);
  std::lock_guard lock(engine_);
  if (failure_.ok()) CopyPieces(Seen(std::move(to)), from);
  co_return failure_;
}

Task<Status> FakeDevice::CopyOut(std::vector<iovec> to, std::vector<iovec> from) {
  co_await Turn(&FakeDevice::held_);
  std::lock_guard lock(engine_);
  if (failure_.ok()) CopyPieces(to, Seen(std::move(from)));
  co_return failure_;
}

Task<Status> FakeDevice::Zero(std::vector<iovec> pieces) {
  for (const iovec& piece : Seen(std::move(pieces))) std::memset(piece.iov_base, 0, piece.iov_len);
  co_return OkStatus();
}

Task<StatusOr<std::vector<uint32_t>>> FakeDevice::Crc32c(std::vector<iovec> pieces) {
  std::vector<uint32_t> sums;
  for (const iovec& piece : Seen(std::move(pieces))) {
    sums.push_back(nacre::Crc32c({static_cast<const std::byte*>(piece.iov_base), piece.iov_len}));
  }
  co_return sums;
}

Task<StatusOr<StagingBuffer>> FakeDevice::Stage(size_t size) {
  std::lock_guard lock(mutex_);
  if (free_slots_.empty()) {
    slots_.push_back(std::make_unique<std::byte[]>(kStagingSize));
    free_slots_.push_back(slots_.back().get());
  }
  std::byte* const slot = free_slots_.back();
  free_slots_.pop_back();
  auto give_back = [this](std::byte* slot) {
    std::lock_guard lock(mutex_);
    free_slots_.push_back(slot);
  };
  const std::span<std::byte> whole(slot, kStagingSize);
  co_return StagingBuffer{whole.first(std::min(size, kStagingSize)),
                          std::shared_ptr<std::byte>(slot, give_back), whole};
}

size_t FakeDevice::staging_in_use() {
  std::lock_guard lock(mutex_);
  return slots_.size() - free_slots_.size();
}

Task<StatusOr<std::shared_ptr<void>>> FakeDevice::Pin(std::span<const std::byte> mapped) {
  ++pins_;
  pinned_ = mapped;
  co_await Turn(&FakeDevice::pins_held_);
  CO_RETURN_IF_ERROR(pin_failure_);
  co_return std::shared_ptr<void>(std::make_shared<int>());
}

StatusOr<DmaBuf> FakeDevice::ExportDmaBuf(std::span<const std::byte> memory) {
  RETURN_IF_ERROR(export_failure_);
  ++exports_;
  const bool inside = memory.data() >= not_exported_.data() &&
                      memory.data() + memory.size() <= not_exported_.data() + not_exported_.size();
  if (inside) return ErrnoError(EOPNOTSUPP, "memory of a pool is not exported");
  constexpr uint64_t kPage = 4096;
  const uint64_t into = memory.data() - data_;
  const std::string path = absl::StrCat("/proc/self/fd/", fd_);
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0 || ::lseek(fd, static_cast<off_t>(into / kPage * kPage), SEEK_SET) < 0) std::abort();
  return DmaBuf(fd, into % kPage, memory);
}

Status FakeDevice::FlushRemoteWrites() {
  ++flushes_;
  return flush_failure_;
}

}  // namespace nacre
