#include "gpu/report.h"

#include <gmock/gmock.h>

#include "tests/gpu/gpu_fixture.h"
#include "tests/transport/verbs/fake_rdma.h"

namespace nacre::gpu {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

TEST(Report, SaysWhatIsMissing) {
  Runtime runtime(1);
  MachineReport report = MakeReport(&runtime, {.library = "/nowhere/libcuda.so.1"});
  EXPECT_THAT(std::string(report.gpus.message()), HasSubstr("/nowhere/libcuda.so.1"));
  EXPECT_THAT(report.devices, IsEmpty());
}

TEST(Report, TriesEachWay) {
  WithKnobs with("devices=2", "devices=1");
  Runtime runtime(2);
  MachineReport report = MakeReport(&runtime, {.library = FakeLibrary()});
  ASSERT_TRUE(report.gpus.ok()) << report.gpus;
  ASSERT_EQ(report.devices.size(), 2u);
  for (const DeviceReport& device : report.devices) {
    EXPECT_THAT(device.failure, IsEmpty());
    EXPECT_EQ(device.dma_buf, "yes");
    ASSERT_GE(device.paths.size(), 2u);
    EXPECT_EQ(device.paths.front().from, "this node");
    EXPECT_EQ(device.paths.back().from, "tcp");
    for (const PathReport& path : device.paths) {
      EXPECT_THAT(path.failure, IsEmpty());
      EXPECT_GT(path.gigabytes_per_second, 0);
    }
  }
}

TEST(Report, GivesReasons) {
  WithKnobs with("read_only_register=0,dma_buf=0,kernels=0", "read_only_register=1,dma_buf=1,kernels=1");
  Runtime runtime(2);
  MachineReport report = MakeReport(&runtime, {.library = FakeLibrary()});
  ASSERT_EQ(report.devices.size(), 1u);
  const DeviceReport& device = report.devices.front();
  EXPECT_THAT(device.verification, HasSubstr("cpu ("));
  EXPECT_THAT(device.dma_buf, HasSubstr("open modules"));
  EXPECT_THAT(device.paths.front().reason, HasSubstr("not pinned"));
  EXPECT_THAT(device.paths.front().failure, IsEmpty());
}

TEST(Report, ADeviceThatCannotBeUsed) {
  WithKnobs with("memory=1000", "memory=0");
  Runtime runtime(2);
  MachineReport report = MakeReport(&runtime, {.library = FakeLibrary()});
  ASSERT_EQ(report.devices.size(), 1u);
  EXPECT_THAT(report.devices.front().failure, HasSubstr("cuMemAlloc"));
}

TEST(Report, TriesWhetherANicReachesTheGpu) {
  verbs::FakeRdma rdma;
  Runtime runtime(2);
  auto nic = [&] {
    MachineReport report = MakeReport(&runtime, {.library = FakeLibrary(), .sysfs = "/nowhere"});
    EXPECT_EQ(report.devices.size(), 1u);
    EXPECT_EQ(report.devices.front().paths.size(), 3u);
    EXPECT_EQ(report.devices.front().paths[1].from, "fake0 port 1");
    return report.devices.front().paths[1];
  };
  PathReport path = nic();
  EXPECT_EQ(path.mechanism, "RDMA, dma-buf");
  EXPECT_EQ(path.distance, "SYS");
  EXPECT_EQ(path.trial, "registered");
  EXPECT_THAT(path.reason, IsEmpty());
  {
    WithKnobs with("export_error=801", "export_error=0");
    path = nic();
    EXPECT_EQ(path.mechanism, "RDMA into pinned staging, then the copy engine");
    EXPECT_THAT(path.reason, HasSubstr("CUDA_ERROR_NOT_SUPPORTED (801)"));
    EXPECT_THAT(path.reason, HasSubstr("peer memory: the kernel module nvidia-peermem is not loaded"));
    EXPECT_GT(path.gigabytes_per_second, 0);
  }
  rdma.RefuseDmaBufs(EOPNOTSUPP);
  EXPECT_THAT(nic().reason, HasSubstr("the driver of RDMA device fake0 registers no dma-bufs"));
}

TEST(PciDistance, FollowsTheBridges) {
  const std::string switch_port = "/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/";
  EXPECT_EQ(
      PciDistance(switch_port + "0000:02:00.0/0000:03:00.0", 0, switch_port + "0000:02:01.0/0000:04:00.0", 0),
      "PIX");
  EXPECT_EQ(PciDistance(switch_port + "0000:02:00.0/0000:03:00.0/0000:04:00.0/0000:05:00.0", 0,
                        switch_port + "0000:02:01.0/0000:06:00.0", 0),
            "PXB");
  const std::string root = "/sys/devices/pci0000:00/", other_root = "/sys/devices/pci0000:80/";
  EXPECT_EQ(PciDistance(root + "0000:00:01.0/0000:01:00.0", 0, root + "0000:00:02.0/0000:02:00.0", 0), "PHB");
  EXPECT_EQ(PciDistance(root + "0000:00:01.0/0000:01:00.0", 0, other_root + "0000:80:02.0/0000:82:00.0", 0),
            "NODE");
  EXPECT_EQ(PciDistance(root + "0000:00:01.0/0000:01:00.0", 0, other_root + "0000:80:02.0/0000:82:00.0", 1),
            "SYS");
  EXPECT_EQ(PciDistance("", -1, root + "0000:00:02.0/0000:02:00.0", -1), "SYS");
}

}  // namespace
}  // namespace nacre::gpu
