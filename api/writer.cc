#include "api/writer.h"

#include <fcntl.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <span>

#include "client/inode.h"
#include "common/task.h"
#include "transport/memory_device.h"

namespace nacre::api {
namespace {

constexpr uint64_t kHostStep = 4 << 20;    // given to the client in one go
constexpr uint64_t kDeviceStep = 1 << 20;  // a slot of the staging
constexpr size_t kStepsAtOnce = 8;

// The steps of one call, taken in turn by its workers.
class Steps {
 public:
  struct Step {
    size_t extent = 0;
    uint64_t offset = 0;  // in the file
    MemorySpan from;
    uint64_t written = 0;
  };

  Steps(std::vector<CheckedExtent> extents, CancellationPtr cancellation)
      : extents_(std::move(extents)), cancellation_(std::move(cancellation)), errors_(extents_.size()) {
    for (size_t i = 0; i < extents_.size(); ++i) Cut(i);
  }

  client::FileSystem& filesystem() const { return extents_.front().file->client()->filesystem(); }
  const client::HandlePtr& handle() const { return extents_.front().file->handle(); }
  Cancellation& cancellation() const { return *cancellation_; }

  size_t Workers() const {
    if ((handle()->flags & O_APPEND) != 0) return 1;
    return std::min(kStepsAtOnce, steps_.size());
  }

  // Null: there are no more. Those of an extent that has failed are left out.
  Step* Take() {
    std::lock_guard lock(mutex_);
    while (next_ < steps_.size() && errors_[steps_[next_].extent]) ++next_;
    return next_ < steps_.size() ? &steps_[next_++] : nullptr;
  }
  void Fail(const Step& step, Status status) {
    std::lock_guard lock(mutex_);
    std::optional<Status>& error = errors_[step.extent];
    if (!error) error = std::move(status);
  }

  // When nobody works any more.
  Outcome Outcomes() const {
    Outcome outcomes;
    for (const std::optional<Status>& error : errors_)
      outcomes.push_back(error ? Failed(*error) : ExtentOutcome());
    std::vector<bool> gap(extents_.size(), false);  // what comes behind is no longer from the beginning on
    for (const Step& step : steps_) {
      if (!gap[step.extent]) outcomes[step.extent].bytes += step.written;
      gap[step.extent] = gap[step.extent] || step.written < step.from.length;
    }
    return outcomes;
  }

 private:
  void Cut(size_t index) {
    const CheckedExtent& extent = extents_[index];
    const uint64_t most = extent.buffer->region()->device() == nullptr ? kHostStep : kDeviceStep;
    std::vector<client::ReadPiece> pieces;
    extent.AppendPieces(&pieces);
    for (const client::ReadPiece& piece : pieces) {
      for (uint64_t at = 0; at < piece.memory.length; at += most) {
        MemorySpan from{piece.memory.region, piece.memory.offset + at,
                        std::min(most, piece.memory.length - at)};
        steps_.push_back({index, piece.offset + at, std::move(from)});
      }
    }
  }

  const std::vector<CheckedExtent> extents_;
  const CancellationPtr cancellation_;
  std::mutex mutex_;
  std::vector<Step> steps_;  // in order
  size_t next_ = 0;
  std::vector<std::optional<Status>> errors_;  // of each extent
};

// Some of the bytes, at least one.
Task<StatusOr<size_t>> WriteSome(Steps* steps, uint64_t offset, MemorySpan from) {
  const std::shared_ptr<MemoryDevice> device = from.region->device();
  StagingBuffer staged;
  std::span<const std::byte> bytes;
  if (device == nullptr) {
    bytes = std::span(from.data(), from.length);
  } else {
    CO_ASSIGN_OR_RETURN(staged, co_await device->Stage(from.length));
    const size_t size = std::min<size_t>(from.length, staged.bytes.size());
    std::vector<iovec> target(1, iovec{staged.bytes.data(), size});
    std::vector<iovec> source(1, iovec{from.data(), size});
    CO_RETURN_IF_ERROR(co_await device->CopyOut(std::move(target), std::move(source)));
    bytes = staged.bytes.first(size);
  }
  client::HandlePtr handle = steps->handle();
  co_return co_await steps->filesystem().Write(std::move(handle), offset, std::span(&bytes, 1));
}

Task<Status> WriteStep(Steps* steps, Steps::Step* step) {
  while (step->written < step->from.length) {
    const Cancellation::Use use = steps->cancellation().Begin();
    if (!use) co_return steps->cancellation().status();
    MemorySpan rest = step->from;
    rest.offset += step->written;
    rest.length -= step->written;
    CO_ASSIGN_OR_RETURN(const size_t size,
                        co_await WriteSome(steps, step->offset + step->written, std::move(rest)));
    step->written += size;
  }
  co_return OkStatus();
}

Task<Unit> Work(Steps* steps) {
  for (Steps::Step* step = steps->Take(); step != nullptr; step = steps->Take()) {
    Status written = co_await WriteStep(steps, step);
    if (!written.ok()) steps->Fail(*step, std::move(written));
  }
  co_return Unit{};
}

}  // namespace

Task<Outcome> WriteTogether(std::vector<CheckedExtent> extents, CancellationPtr cancellation) {
  Steps steps(std::move(extents), std::move(cancellation));
  std::vector<Task<Unit>> workers;
  for (size_t i = 0; i < steps.Workers(); ++i) workers.push_back(Work(&steps));
  co_await WhenAll(std::move(workers));
  co_return steps.Outcomes();
}

}  // namespace nacre::api
