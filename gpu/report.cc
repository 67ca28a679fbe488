#include "gpu/report.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <optional>

#include "common/crc32c.h"
#include "gpu/device_state.h"
#include "transport/shared_memory.h"
#include "transport/verbs/device_memory.h"
#include "transport/verbs/port.h"

namespace nacre::gpu {
namespace {

constexpr size_t kTrialSize = 64 << 20;
constexpr size_t kTrialPart = 4 << 20;

// Memory of a GPU for a trial.
class TrialMemory {
 public:
  explicit TrialMemory(std::shared_ptr<Context> context) : context_(std::move(context)) {}
  ~TrialMemory() {
    UseContext use(*context_);
    if (address_ != 0) context_->cuda()->MemFree(address_);
  }
  Status Allocate() {
    UseContext use(*context_);
    RETURN_IF_ERROR(use.status());
    return context_->cuda().Check(context_->cuda()->MemAlloc(&address_, kTrialSize), "cuMemAlloc");
  }
  std::byte* data() const { return reinterpret_cast<std::byte*>(address_); }

 private:
  const std::shared_ptr<Context> context_;
  CudaAddress address_ = 0;
};

std::vector<iovec> Range(const std::byte* data, size_t size) {
  return std::vector<iovec>(1, iovec{const_cast<std::byte*>(data), size});
}

std::vector<Task<Status>> CopyParts(Device* device, std::byte* to, const std::byte* from) {
  std::vector<Task<Status>> parts;
  for (size_t at = 0; at < kTrialSize; at += kTrialPart)
    parts.push_back(device->CopyIn(Range(to + at, kTrialPart), Range(from + at, kTrialPart)));
  return parts;
}

// One slot after the other, as a connection fills them.
Task<Status> CopyThroughStaging(Device* device, std::byte* to, std::span<const std::byte> from) {
  while (!from.empty()) {
    CO_ASSIGN_OR_RETURN(StagingBuffer staged, co_await device->Stage(from.size()));
    size_t size = staged.bytes.size();
    std::copy_n(from.begin(), size, staged.bytes.begin());
    std::vector<iovec> target = Range(to, size), source = Range(staged.bytes.data(), size);
    CO_RETURN_IF_ERROR(co_await device->CopyIn(std::move(target), std::move(source)));
    to += size;
    from = from.subspan(size);
  }
  co_return OkStatus();
}

std::vector<Task<Status>> StageParts(Device* device, std::byte* to, const std::byte* from) {
  std::vector<Task<Status>> parts;
  for (size_t at = 0; at < kTrialSize; at += kTrialPart)
    parts.push_back(CopyThroughStaging(device, to + at, {from + at, kTrialPart}));
  return parts;
}

class Trials {
 public:
  Trials(Runtime* runtime, std::shared_ptr<Device> device) : runtime_(runtime), device_(std::move(device)) {}

  Status Prepare() {
    ASSIGN_OR_RETURN(auto state, device_->State());
    memory_.emplace(state->context());
    RETURN_IF_ERROR(memory_->Allocate());
    ASSIGN_OR_RETURN(shared_, SharedMemory::Create("nacre-gpu-trial", kTrialSize));
    for (size_t i = 0; i < kTrialSize; ++i)
      shared_->data()[i] = static_cast<std::byte>(i * 2654435761u >> 13);
    ASSIGN_OR_RETURN(view_, SharedView::Map(shared_->fd(), kTrialSize));
    return OkStatus();
  }

  // A server's pool on this node: mapped for reading, pinned, copied by the GPU.
  PathReport SameNode() {
    PathReport path{
        .from = "this node", .distance = "-", .mechanism = "copy engine from the server's memory"};
    StatusOr<std::shared_ptr<void>> pinned = runtime_->Run(device_->Pin(view_->bytes()));
    if (!pinned.ok()) path.reason = absl::StrCat("not pinned, so slower: ", pinned.status().message());
    Measure(CopyParts, view_->bytes().data(), &path);
    return path;
  }

  // `into`: what brings the bytes into the staging buffers.
  PathReport Staged(std::string_view into, std::string from, std::string distance, std::string reason) {
    PathReport path{std::move(from), std::move(distance),
                    absl::StrCat(AbslView(into), " into pinned staging, then the copy engine"),
                    std::move(reason)};
    Measure(StageParts, shared_->data(), &path);
    return path;
  }

  // A NIC that writes there by itself, if one can.
  PathReport Rdma(const verbs::Ibverbs& ibverbs, const verbs::PortInfo& port, std::string distance) {
    StatusOr<std::shared_ptr<verbs::Domain>> domain = verbs::Domain::Open(ibverbs, port.device);
    if (!domain.ok())
      return Staged("TCP", port.name(), std::move(distance), std::string(domain.status().message()));
    const verbs::DeviceVerdict verdict = verbs::TryDeviceMemory(*domain, *device_);
    if (!verdict.status.ok())
      return Staged("RDMA", port.name(), std::move(distance), std::string(verdict.status.message()));
    return PathReport{.from = port.name(),
                      .distance = std::move(distance),
                      .mechanism = absl::StrCat("RDMA, ", AbslView(verbs::Name(verdict.mechanism))),
                      .reason = verdict.reason,
                      .trial = "registered"};
  }

  std::string DmaBufVerdict() {
    Status exported = device_->ExportDmaBuf({memory_->data(), 64 << 10}).status();
    return exported.ok() ? "yes" : std::string(exported.message());
  }

 private:
  using MakeTasks = std::vector<Task<Status>> (*)(Device*, std::byte*, const std::byte*);

  // The second of two rounds counts: the first one allocates.
  void Measure(MakeTasks make, const std::byte* from, PathReport* path) {
    Status status;
    double seconds = 0;
    for (int round = 0; round < 2 && status.ok(); ++round) {
      auto begin = std::chrono::steady_clock::now();
      for (const Status& part : runtime_->Run(WhenAll(make(device_.get(), memory_->data(), from))))
        status.Update(part);
      seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    }
    if (status.ok()) status = Verify({from, kTrialSize});
    if (status.ok())
      path->gigabytes_per_second = 1e-9 * kTrialSize / seconds;
    else
      path->failure = std::string(status.message());
  }

  Status Verify(std::span<const std::byte> expected) {
    ASSIGN_OR_RETURN(auto sums, runtime_->Run(device_->Crc32c(Range(memory_->data(), kTrialSize))));
    if (sums.size() == 1 && sums.front() == nacre::Crc32c(expected)) return OkStatus();
    return ErrnoError(EIO, "the bytes did not arrive as they were sent");
  }

  Runtime* const runtime_;
  const std::shared_ptr<Device> device_;
  std::optional<TrialMemory> memory_;
  std::shared_ptr<SharedMemory> shared_;
  std::shared_ptr<const SharedView> view_;
};

std::string SysfsPlace(const std::string& link) {
  std::error_code error;
  std::filesystem::path place = std::filesystem::canonical(link, error);
  return error ? "" : place.string();
}

int SysfsNumber(const std::string& path) {
  int number = -1;
  std::ifstream(path) >> number;
  return number;
}

std::string DistanceTo(const DeviceInfo& gpu, const std::string& nic) {
  std::string id = gpu.pci_bus_id;
  std::transform(id.begin(), id.end(), id.begin(), [](unsigned char c) { return std::tolower(c); });
  std::string nic_link = "/sys/class/infiniband/" + nic + "/device";
  return PciDistance(SysfsPlace("/sys/bus/pci/devices/" + id), gpu.numa_node, SysfsPlace(nic_link),
                     SysfsNumber(nic_link + "/numa_node"));
}

DeviceReport ReportDevice(Runtime* runtime, const std::shared_ptr<Device>& device,
                          const StatusOr<const verbs::Ibverbs*>& rdma,
                          std::span<const verbs::PortInfo> ports) {
  DeviceReport report{.info = device->info()};
  Trials trials(runtime, device);
  if (Status ready = trials.Prepare(); !ready.ok()) {
    report.failure = std::string(ready.message());
    return report;
  }
  report.verification = device->verification();
  report.dma_buf = trials.DmaBufVerdict();
  report.paths.push_back(trials.SameNode());
  for (const verbs::PortInfo& port : ports)
    report.paths.push_back(trials.Rdma(**rdma, port, DistanceTo(device->info(), port.device)));
  report.paths.push_back(
      trials.Staged("TCP", "tcp", "-", rdma.ok() ? "" : absl::StrCat("no RDMA: ", rdma.status().message())));
  return report;
}

}  // namespace

std::string PciDistance(const std::string& one, int one_node, const std::string& other, int other_node) {
  if (one.empty() || other.empty()) return "SYS";
  const std::filesystem::path here(one), there(other);
  std::filesystem::path shared;
  for (auto a = here.begin(), b = there.begin(); a != here.end() && b != there.end() && *a == *b; ++a, ++b)
    shared /= *a;
  // Below the root complex ("/sys/devices/pci0000:00"), a bridge above both devices' own is a switch.
  const bool root = shared.filename().string().rfind("pci", 0) == 0;
  const bool below_root = shared.string().find("/pci") != std::string::npos && !root;
  if (below_root && here.parent_path().parent_path() == shared && there.parent_path().parent_path() == shared)
    return "PIX";
  if (below_root) return "PXB";
  if (root) return "PHB";
  return one_node >= 0 && one_node == other_node ? "NODE" : "SYS";
}

MachineReport MakeReport(Runtime* runtime, Options options) {
  MachineReport report;
  std::vector<verbs::PortInfo> ports;
  StatusOr<const verbs::Ibverbs*> ibverbs = verbs::LoadIbverbs();
  if (ibverbs.ok()) {
    StatusOr<std::vector<verbs::PortInfo>> found = verbs::FindPorts(**ibverbs);
    if (found.ok())
      ports = *std::move(found);
    else
      ibverbs = found.status();
  }
  report.rdma = ibverbs.status();
  StatusOr<std::shared_ptr<Gpus>> gpus = Gpus::Open(std::move(options));
  report.gpus = gpus.status();
  if (!gpus.ok()) return report;
  report.driver_version = (*gpus)->driver_version();
  for (const auto& device : (*gpus)->devices())
    report.devices.push_back(ReportDevice(runtime, device, ibverbs, ports));
  return report;
}

}  // namespace nacre::gpu
