#include "gpu/device.h"

#include <absl/strings/str_cat.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>

#include "common/crc32c.h"
#include "common/ids.h"
#include "gpu/cuda_library.h"
#include "gpu/device_state.h"
#include "gpu/piece_sums.h"

namespace nacre::gpu {
namespace {

Task<Status> RunCopy(DeviceState* state, Job::Kind kind, std::vector<iovec> device, std::vector<iovec> host) {
  auto job = std::make_shared<Job>(kind);
  CO_ASSIGN_OR_RETURN(job->segments, PairPieces(device, host));
  if (job->segments.empty()) co_return OkStatus();
  co_return co_await state->engine().Run(std::move(job));
}

std::vector<iovec> OnePiece(std::byte* data, size_t size) { return std::vector<iovec>(1, iovec{data, size}); }

// Takes the first `most` bytes from the pieces, which become shorter or empty. One for each piece that it has
// touched, empty ones too.
std::vector<iovec> TakeFront(std::span<iovec> pieces, size_t most) {
  std::vector<iovec> taken;
  for (iovec& piece : pieces) {
    if (most == 0) break;
    const size_t take = std::min(piece.iov_len, most);
    taken.push_back({piece.iov_base, take});
    piece = {static_cast<std::byte*>(piece.iov_base) + take, piece.iov_len - take};
    most -= take;
  }
  return taken;
}

// Where no kernel may run: as many bytes at once as a staging buffer holds, whichever pieces they are of.
Task<StatusOr<std::vector<uint32_t>>> SumByCpu(DeviceState* state, std::vector<iovec> pieces) {
  std::vector<uint32_t> sums(pieces.size());
  size_t left = TotalBytes(pieces);
  for (size_t first = 0; left > 0;) {
    CO_ASSIGN_OR_RETURN(StagingBuffer buffer, co_await state->staging().Stage(left, &state->engine()));
    std::vector<iovec> taken = TakeFront(std::span(pieces).subspan(first), buffer.bytes.size());
    std::vector<iovec> host = OnePiece(buffer.bytes.data(), buffer.bytes.size());
    std::vector<iovec> device = taken;
    CO_RETURN_IF_ERROR(co_await RunCopy(state, Job::Kind::kCopyOut, std::move(device), std::move(host)));
    left -= buffer.bytes.size();
    for (const iovec& part : taken) {
      sums[first] = nacre::Crc32c(buffer.bytes.first(part.iov_len), sums[first]);
      buffer.bytes = buffer.bytes.subspan(part.iov_len);
      if (pieces[first].iov_len == 0) ++first;  // all of it was taken
    }
  }
  co_return sums;
}

// The driver registers memory twice as fast whose pages are mapped here already, and threads that wait for
// different memory map it side by side, but register it one after the other. Older kernels do not do that
// (before Linux 5.14).
void MapPages(std::span<const std::byte> memory) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t begin = reinterpret_cast<uintptr_t>(memory.data()) / page * page;
  const size_t length = reinterpret_cast<uintptr_t>(memory.data() + memory.size()) - begin;
  (void)::madvise(reinterpret_cast<void*>(begin), length, MADV_POPULATE_READ);
}

}  // namespace

Device::Device(std::shared_ptr<const CudaLibrary> cuda, std::shared_ptr<HostPins> pins, DeviceInfo info,
               Options options)
    : cuda_(std::move(cuda)), pins_(std::move(pins)), info_(std::move(info)), options_(std::move(options)) {}

Device::~Device() {
  if (cuda_->CheckProcess().ok()) {
    if (starter_.joinable()) starter_.join();
    return;
  }
  // A forked child has neither the threads nor the context: it lets go of nothing.
  if (starter_.joinable()) starter_.detach();
  if (state_ != nullptr) new std::shared_ptr<DeviceState>(std::move(state_));
}

StatusOr<std::shared_ptr<DeviceState>> Device::State() {
  RETURN_IF_ERROR(cuda_->CheckProcess());
  if (ready_) return state_;
  std::lock_guard lock(mutex_);
  if (state_ == nullptr) {
    ASSIGN_OR_RETURN(state_, DeviceState::Make(cuda_, pins_, info_, options_));
    ready_ = true;
  }
  return state_;
}

Task<StatusOr<std::shared_ptr<DeviceState>>> Device::Ready() {
  CO_RETURN_IF_ERROR(cuda_->CheckProcess());
  if (ready_) co_return state_;
  OneShot<StatusOr<std::shared_ptr<DeviceState>>> made;
  StartBehind(made);
  co_return co_await made.Wait();
}

// A context takes long: not on a thread that others wait for.
void Device::StartBehind(const OneShot<StatusOr<std::shared_ptr<DeviceState>>>& made) {
  std::lock_guard lock(start_mutex_);
  awaiting_start_.push_back(made);
  if (awaiting_start_.size() > 1) return;
  if (starter_.joinable()) starter_.join();
  ++starts_;
  starter_ = std::thread([this] {
    StatusOr<std::shared_ptr<DeviceState>> state = State();
    std::vector<OneShot<StatusOr<std::shared_ptr<DeviceState>>>> waiting;
    {
      std::lock_guard lock(start_mutex_);
      waiting.swap(awaiting_start_);
    }
    for (const auto& each : waiting) each.Set(state);
  });
}

Task<Status> Device::Start() {
  StatusOr<std::shared_ptr<DeviceState>> state = co_await Ready();
  co_return state.status();
}

Task<Status> Device::ReserveForStreams() {
  if (reserved_) co_return OkStatus();
  CO_ASSIGN_OR_RETURN(auto state, co_await Ready());
  CO_RETURN_IF_ERROR(co_await state->engine().Reserve());
  (void)co_await state->staging().Reserve(options_.staging_bytes, &state->engine());
  if (info_.dma_buf || info_.gpu_direct_rdma) (void)TrialMemory();
  reserved_ = true;
  co_return OkStatus();
}

Status Device::kernels() {
  ASSIGN_OR_RETURN(auto state, State());
  return state->kernels().status();
}

std::string Device::verification() {
  Status status = kernels();
  return status.ok() ? "gpu" : absl::StrCat("cpu (", status.message(), ")");
}

std::string Device::name() const { return absl::StrCat("cuda:", info_.ordinal); }

Task<Status> Device::CopyIn(std::vector<iovec> to, std::vector<iovec> from) {
  CO_ASSIGN_OR_RETURN(auto state, co_await Ready());
  co_return co_await RunCopy(state.get(), Job::Kind::kCopyIn, std::move(to), std::move(from));
}

Task<Status> Device::CopyOut(std::vector<iovec> to, std::vector<iovec> from) {
  CO_ASSIGN_OR_RETURN(auto state, co_await Ready());
  co_return co_await RunCopy(state.get(), Job::Kind::kCopyOut, std::move(from), std::move(to));
}

Task<Status> Device::Zero(std::vector<iovec> pieces) {
  CO_ASSIGN_OR_RETURN(auto state, co_await Ready());
  auto job = std::make_shared<Job>(Job::Kind::kZero);
  job->pieces = std::move(pieces);
  co_return co_await state->engine().Run(std::move(job));
}

Task<StatusOr<std::vector<uint32_t>>> Device::Crc32c(std::vector<iovec> pieces) {
  CO_ASSIGN_OR_RETURN(auto state, co_await Ready());
  if (!state->kernels().ok()) co_return co_await SumByCpu(state.get(), std::move(pieces));
  auto job = std::make_shared<Job>(Job::Kind::kSum);
  job->pieces = std::move(pieces);
  const Status summed = co_await state->engine().Run(job);
  if (ToErrno(summed) == EBUSY) co_return co_await SumByCpu(state.get(), std::move(job->pieces));
  CO_RETURN_IF_ERROR(summed);
  co_return JoinSums(job->pieces, job->sums);
}

Task<StatusOr<std::vector<uint32_t>>> Device::CopyInAndSum(std::vector<iovec> to, std::vector<iovec> from,
                                                           std::vector<iovec> pieces) {
  CO_ASSIGN_OR_RETURN(auto state, co_await Ready());
  auto job = std::make_shared<Job>(Job::Kind::kCopyIn);
  CO_ASSIGN_OR_RETURN(job->segments, PairPieces(to, from));
  if (job->segments.empty()) co_return std::vector<uint32_t>();
  job->pieces = std::move(pieces);
  CO_RETURN_IF_ERROR(co_await state->engine().Run(job));
  if (job->sums.empty()) co_return co_await SumBlocks(std::move(job->pieces));
  static_assert(kKernelPieceSize == kBlockSize, "the kernel's parts are the blocks");
  co_return std::move(job->sums);
}

Task<StatusOr<StagingBuffer>> Device::Stage(size_t size) {
  CO_ASSIGN_OR_RETURN(auto state, co_await Ready());
  co_return co_await state->staging().Stage(size, &state->engine());
}

Task<StatusOr<uint64_t>> Device::ReserveStaging(size_t size) {
  CO_ASSIGN_OR_RETURN(auto state, co_await Ready());
  co_return co_await state->staging().Reserve(size, &state->engine());
}

Task<StatusOr<std::shared_ptr<void>>> Device::Pin(std::span<const std::byte> mapped) {
  CO_ASSIGN_OR_RETURN(auto state, co_await Ready());
  if (std::shared_ptr<void> token = pins_->Find(mapped)) co_return token;
  MapPages(mapped);
  StatusOr<std::shared_ptr<void>> token = nullptr;
  // Must not own the state: the engine's thread would destroy itself with it.
  auto pin = [pins = pins_, context = state->context(), mapped, read_only = info_.read_only_host_register,
              &token] {
    token = pins->Pin(context, mapped, read_only);
    return OkStatus();
  };
  absl::AnyInvocable<Status()> call = std::move(pin);
  CO_RETURN_IF_ERROR(co_await state->engine().Call(std::move(call)));
  co_return token;
}

}  // namespace nacre::gpu
