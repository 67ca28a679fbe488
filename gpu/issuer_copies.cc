#include <absl/strings/str_format.h>

#include <algorithm>

#include "gpu/issuer.h"
#include "gpu/piece_sums.h"
#include "gpu/pointer_info.h"

namespace nacre::gpu {
namespace {

constexpr uint64_t kBatchBytes = 8 << 20;  // a batch ends together: large ones would end late
constexpr size_t kFewestForOneCall = 3;    // fewer are as quick by themselves
constexpr size_t kFewestForKernel = 8;
constexpr size_t kMostForKernel = 32 << 10;  // longer pieces are the copy engine's
// Shorter copies to the GPU do not go by its copy engine, unless they are of several rows (stream_waits.h).
// As measured it is half of that, but 64 KiB is what CUDA's guide says of such copies.
constexpr size_t kShort = 64 << 10;

Status CheckSegments(const Job& job, SpanChecker* checker) {
  for (const Segment& segment : job.segments) RETURN_IF_ERROR(checker->Check(segment.device, segment.length));
  return OkStatus();
}

}  // namespace

void Issuer::IssueCopies(std::span<const JobPtr> jobs, Job::Kind kind) {
  Batch batch;
  std::vector<Item> items;
  SpanChecker checker(*context_);
  for (const JobPtr& job : jobs) {
    if (Status status = CheckSegments(*job, &checker); !status.ok()) {
      job->done.Set(status);
      continue;
    }
    batch.jobs.push_back(job);
    for (const Segment& segment : job->segments) AddItems(segment, job.get(), &items);
    for (const Segment& segment : job->segments) batch.bytes += segment.length;
    if (batch.bytes < kBatchBytes) continue;
    SendCopies(std::move(batch), std::move(items), kind);
    batch = {};
    items = {};
  }
  if (!batch.jobs.empty()) SendCopies(std::move(batch), std::move(items), kind);
}

// One for each part of the segment whose host memory was pinned in one go.
void Issuer::AddItems(const Segment& segment, Job* job, std::vector<Item>* items) const {
  for (size_t done = 0; done < segment.length;) {
    const size_t length = pinned_->Within({segment.host + done, segment.length - done});
    items->push_back({{segment.device + done, segment.host + done, length}, job});
    done += length;
  }
}

void Issuer::SendCopies(Batch batch, std::vector<Item> items, Job::Kind kind) {
  InFlight* in_flight = kind == Job::Kind::kCopyOut ? out_.get() : in_[next_in_++ % in_.size()].get();
  CudaStream stream = in_flight->stream();
  const auto nobody_waits = waits_->HoldOff();
  if (!nobody_waits.owns_lock()) {
    CopyByEngine(items, kind, stream);
  } else {
    if (kind == Job::Kind::kCopyIn) CopyByKernel(&items, &batch, stream);
    if (!CopyInOneCall(items, kind, stream)) CopyOneByOne(items, kind, stream);
    if (kind == Job::Kind::kCopyIn) SumBehind(&batch, stream);
  }
  Send(std::move(batch), in_flight);
}

bool Issuer::FitsKernel(const Item& item) const {
  return item.segment.length <= kMostForKernel && pinned_->Contains({item.segment.host, item.segment.length});
}

// Moves small copies from pinned memory from `items` to one launch of the copying kernel.
void Issuer::CopyByKernel(std::vector<Item>* items, Batch* batch, CudaStream stream) {
  if (kernels_ == nullptr || items->size() < kFewestForKernel) return;
  auto small = std::stable_partition(items->begin(), items->end(),
                                     [&](const Item& item) { return !FitsKernel(item); });
  if (static_cast<size_t>(items->end() - small) < kFewestForKernel) return;
  LaunchList* list = lists_.Take();
  if (list == nullptr) return;
  batch->list = list;
  auto item = small;
  for (; item != items->end() && list->room() >= kMostForKernel / kKernelPieceSize; ++item) {
    const Segment& segment = item->segment;
    for (size_t done = 0; done < segment.length; done += kKernelPieceSize)
      list->pieces[list->count++] = {segment.device + done, reinterpret_cast<uint64_t>(segment.host + done),
                                     std::min<uint64_t>(kKernelPieceSize, segment.length - done)};
  }
  Status launched = kernels_->Copy(list->view(), stream);
  for (auto failed = small; failed != item; ++failed) failed->job->Fail(launched);
  items->erase(small, item);
}

// As many of the batch's jobs as the list has room for; the others end without sums.
void Issuer::SumBehind(Batch* batch, CudaStream stream) {
  if (kernels_ == nullptr) return;
  for (const JobPtr& job : batch->jobs) {
    if (job->kind != Job::Kind::kCopyIn || job->pieces.empty()) continue;
    const std::vector<KernelPiece> runs = RunsOf(job->pieces);
    if (runs.empty()) continue;
    if (batch->list == nullptr) batch->list = lists_.Take();
    if (batch->list == nullptr) return;
    LaunchList& list = *batch->list;
    if (batch->sums.empty()) batch->first_run = list.count;
    if (runs.size() > list.room()) continue;
    std::copy(runs.begin(), runs.end(), list.pieces + list.count);
    list.count += runs.size();
    job->sums.resize(CountParts(job->pieces));
    batch->sums.push_back({job, 0, runs.size()});
  }
  if (batch->sums.empty()) return;
  const Status launched = kernels_->Crc32c(batch->list->view(batch->first_run), batch->list->sums, stream);
  for (const SumRange& range : batch->sums) range.job->Fail(launched);
}

// False: nothing can be relied on to have been enqueued.
bool Issuer::CopyInOneCall(std::span<const Item> items, Job::Kind kind, CudaStream stream) {
  const CudaLibrary& cuda = context_->cuda();
  if (cuda->MemcpyBatchAsync == nullptr || items.size() < kFewestForOneCall) return false;
  std::vector<CudaAddress> device, host;
  std::vector<size_t> sizes;
  for (const Item& item : items) {
    device.push_back(item.segment.device);
    host.push_back(reinterpret_cast<CudaAddress>(item.segment.host));
    sizes.push_back(item.segment.length);
  }
  bool in = kind == Job::Kind::kCopyIn;
  CudaMemcpyAttributes attributes{.access_order = kCudaAccessInStreamOrder};
  size_t first = 0, failed = 0;
  return cuda->MemcpyBatchAsync((in ? device : host).data(), (in ? host : device).data(), sizes.data(),
                                sizes.size(), &attributes, &first, 1, &failed, stream) == kCudaSuccess;
}

void Issuer::CopyOneByOne(std::span<const Item> items, Job::Kind kind, CudaStream stream) {
  const CudaLibrary& cuda = context_->cuda();
  for (const auto& [segment, job] : items) {
    bool in = kind == Job::Kind::kCopyIn;
    CudaResult result = in ? cuda->MemcpyHtoDAsync(segment.device, segment.host, segment.length, stream)
                           : cuda->MemcpyDtoHAsync(segment.host, segment.device, segment.length, stream);
    if (result == kCudaSuccess) continue;
    job->Fail(cuda.Check(result,
                         absl::StrFormat("%s(0x%x, %d bytes)", in ? "cuMemcpyHtoDAsync" : "cuMemcpyDtoHAsync",
                                         segment.device, segment.length)));
  }
}

void Issuer::CopyByEngine(std::span<const Item> items, Job::Kind kind, CudaStream stream) {
  for (const Item& item : items) {
    if (kind == Job::Kind::kCopyIn && item.segment.length <= kShort && item.segment.length > 1)
      CopyInTwoRows(item.segment, item.job, stream);
    else
      CopyOneByOne({&item, 1}, kind, stream);
  }
}

void Issuer::CopyInTwoRows(Segment segment, Job* job, CudaStream stream) {
  const size_t row = segment.length / 2;
  const CudaMemcpy2D rows{
      .from = {.type = kCudaMemoryHost, .host = segment.host, .pitch = row},
      .to = {.type = kCudaMemoryDevice, .device = segment.device, .pitch = row},
      .width = row,
      .height = 2,
  };
  job->Fail(context_->cuda().Check(
      context_->cuda()->Memcpy2DAsync(&rows, stream),
      absl::StrFormat("cuMemcpy2DAsync(0x%x, 2 rows of %d bytes)", segment.device, row)));
  if (segment.length == 2 * row) return;
  // The odd byte with the one before it, again.
  CopyInTwoRows({segment.device + segment.length - 2, segment.host + segment.length - 2, 2}, job, stream);
}

}  // namespace nacre::gpu
