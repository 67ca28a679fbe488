// Reports what this machine can do for GPU memory, tried out rather than believed: for `nacre gpu`.
// Thread-safe. Takes some memory (64 MiB, pinned, and as much of each GPU) and a second for each GPU.
#pragma once

#include <string>
#include <vector>

#include "common/runtime.h"
#include "gpu/gpus.h"

namespace nacre::gpu {

// One way of a file's bytes into a GPU's memory.
struct PathReport {
  std::string from;      // "this node", "tcp", "mlx5_0 port 1"
  std::string distance;  // between GPU and NIC, see PciDistance; "-": no NIC
  std::string mechanism;
  std::string reason;               // why not a better one; empty: there is none
  double gigabytes_per_second = 0;  // what the trial reached; 0: it measured nothing, or failed
  std::string trial;                // what it did where it measured nothing
  std::string failure;              // of the trial
};

struct DeviceReport {
  DeviceInfo info;
  std::string verification;  // "gpu", "cpu (REASON)"
  std::string dma_buf;       // "yes", or why not: a trial export of 64 KiB
  std::vector<PathReport> paths;
  std::string failure;  // why the GPU cannot be used at all; then nothing else counts
};

struct MachineReport {
  int driver_version = 0;
  Status gpus;  // OK, or what the machine lacks
  Status rdma;
  std::vector<DeviceReport> devices;
};

MachineReport MakeReport(Runtime* runtime, Options options);

// How far apart two PCI devices are, from their places in sysfs
// ("/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0") and NUMA nodes: "PIX" at one switch, "PXB" over
// several switches of one port, "PHB" over the host's bridge, "NODE" in one NUMA node, "SYS" farther.
std::string PciDistance(const std::string& one, int one_node, const std::string& other, int other_node);

}  // namespace nacre::gpu
