#include <cstdio>

#include "common/runtime.h"
#include "common/units.h"
#include "daemon/cli/command.h"
#include "daemon/cli/status_json.h"
#include "gpu/cuda_library.h"
#include "gpu/report.h"

namespace nacre::cli {
namespace {

constexpr char kGpuHelp[] =
    "For each GPU: the ways of a file's bytes into its memory, what was used in a trial (verified, "
    "in GB/s; of an RDMA device, 64 KiB registered for it to write into), and why nothing better.\n"
    "Distance: PIX one PCIe switch, PXB several, PHB the host's bridge, NODE one NUMA node, SYS farther.\n"
    "Takes 64 MiB of each GPU for a moment.\n"
    "Exit status: 0 there is a GPU that works, 1 there is none, 2 wrong usage.";

Json PathToJson(const gpu::PathReport& path) {
  Json out = {{"from", path.from}, {"distance", path.distance}, {"mechanism", path.mechanism}};
  if (!path.reason.empty()) out["reason"] = path.reason;
  if (!path.failure.empty())
    out["trial_failure"] = path.failure;
  else if (!path.trial.empty())
    out["trial"] = path.trial;
  else
    out["trial_gb_per_s"] = path.gigabytes_per_second;
  return out;
}

Json DeviceToJson(const gpu::DeviceReport& device) {
  const gpu::DeviceInfo& info = device.info;
  Json out = {
      {"gpu", info.ordinal},
      {"name", info.name},
      {"pci", info.pci_bus_id},
      {"numa_node", info.numa_node},
      {"memory_bytes", info.memory_bytes},
      {"compute_capability", std::to_string(info.compute_major) + "." + std::to_string(info.compute_minor)}};
  if (!device.failure.empty()) {
    out["failure"] = device.failure;
    return out;
  }
  out["verification"] = device.verification;
  out["dma_buf"] = device.dma_buf;
  for (const gpu::PathReport& path : device.paths) out["paths"].push_back(PathToJson(path));
  return out;
}

Json GpusToJson(const gpu::MachineReport& report) {
  Json out = {{"gpus", Json::array()}};
  if (!report.gpus.ok()) out["reason"] = std::string(report.gpus.message());
  if (report.gpus.ok()) out["driver"] = gpu::VersionText(report.driver_version);
  if (!report.rdma.ok()) out["no_rdma"] = std::string(report.rdma.message());
  for (const gpu::DeviceReport& device : report.devices) out["gpus"].push_back(DeviceToJson(device));
  return out;
}

void PrintPath(const gpu::PathReport& path) {
  std::printf("  %-16s %-8s %-38s ", path.from.c_str(), path.distance.c_str(), path.mechanism.c_str());
  if (!path.failure.empty())
    std::printf("trial failed: %s", path.failure.c_str());
  else if (!path.trial.empty())
    std::printf("%-11s", path.trial.c_str());
  else
    std::printf("%6.1f GB/s", path.gigabytes_per_second);
  std::printf("%s%s\n", path.reason.empty() ? "" : "  ", path.reason.c_str());
}

void PrintDevice(const gpu::DeviceReport& device) {
  const gpu::DeviceInfo& info = device.info;
  std::printf("gpu %d: %s, %s, PCI %s, NUMA node %d\n", info.ordinal, info.name.c_str(),
              HumanSize(info.memory_bytes).c_str(), info.pci_bus_id.c_str(), info.numa_node);
  if (!device.failure.empty()) {
    std::printf("  cannot be used: %s\n", device.failure.c_str());
    return;
  }
  std::printf("  verification: %s; dma-buf: %s\n", device.verification.c_str(), device.dma_buf.c_str());
  std::printf("  %-16s %-8s %-38s %-12s %s\n", "FROM", "DISTANCE", "MECHANISM", "TRIAL", "WHY NOT BETTER");
  for (const gpu::PathReport& path : device.paths) PrintPath(path);
}

int RunGpu(bool json) {
  Runtime runtime(2);
  gpu::MachineReport report = gpu::MakeReport(&runtime, {});
  bool works = std::any_of(report.devices.begin(), report.devices.end(),
                           [](const gpu::DeviceReport& device) { return device.failure.empty(); });
  if (json) {
    std::puts(JsonText(GpusToJson(report)).c_str());
    return works ? kOk : kFailure;
  }
  if (!report.gpus.ok()) return Fail(report.gpus);
  for (const gpu::DeviceReport& device : report.devices) PrintDevice(device);
  return works ? kOk : kFailure;
}

}  // namespace

void AddGpu(CLI::App& app, int* exit) {
  CLI::App* command = app.add_subcommand("gpu", "Show how files reach the memory of this machine's GPUs");
  command->footer(kGpuHelp);
  auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "print JSON");
  command->callback([=] { *exit = RunGpu(*json); });
}

}  // namespace nacre::cli
