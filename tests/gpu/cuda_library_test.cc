// Machines that lack CUDA or a part of it, and the errors that say so.
#include "gpu/cuda_library.h"

#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "tests/gpu/gpu_fixture.h"

namespace nacre::gpu {
namespace {

using testing::HasSubstr;

Status OpenFake(const char* knobs, const char* back) {
  WithKnobs with(knobs, back);
  return Gpus::Open({.library = FakeLibrary()}).status();
}

TEST(CudaLibrary, NoLibrary) {
  Status status = Gpus::Open({.library = "/nowhere/libcuda.so.1"}).status();
  EXPECT_EQ(ToErrno(status), ENOENT);
  EXPECT_THAT(std::string(status.message()), HasSubstr("/nowhere/libcuda.so.1"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("install NVIDIA's driver"));
}

TEST(CudaLibrary, AnotherLibrary) {
  Status status = Gpus::Open({.library = "libc.so.6"}).status();
  EXPECT_EQ(ToErrno(status), ENOENT);
  EXPECT_THAT(std::string(status.message()), HasSubstr("is not a CUDA driver"));
}

TEST(CudaLibrary, DriverTooOld) {
  Status status = OpenFake("driver=10020", "driver=13000");
  EXPECT_EQ(ToErrno(status), ENOSYS);
  EXPECT_THAT(std::string(status.message()), HasSubstr("is of version 10.2, needed is 11.3"));
}

TEST(CudaLibrary, NoDevice) {
  Status status = OpenFake("devices=0", "devices=1");
  EXPECT_EQ(ToErrno(status), ENODEV);
  EXPECT_THAT(std::string(status.message()), HasSubstr("CUDA_VISIBLE_DEVICES"));
}

TEST(CudaLibrary, InitRefused) {
  Status status = OpenFake("init=999", "init=0");
  EXPECT_EQ(ToErrno(status), ENODEV);
  EXPECT_THAT(std::string(status.message()), HasSubstr("cuInit: unknown error (999)"));
}

TEST(CudaLibrary, AnOldDriverHasNoNewFunctions) {
  WithKnobs with("driver=11030", "driver=13000");
  auto cuda = CudaLibrary::Load(FakeLibrary());
  ASSERT_TRUE(cuda.ok()) << cuda.status();
  EXPECT_EQ((*cuda)->driver_version(), 11030);
  EXPECT_EQ((**cuda)->MemcpyBatchAsync, nullptr);
  EXPECT_EQ((**cuda)->StreamWaitValue32, nullptr);
  EXPECT_NE((**cuda)->MemcpyHtoDAsync, nullptr);
}

TEST(CudaLibrary, ErrorsNameTheCallAndTheCode) {
  auto cuda = CudaLibrary::Load(FakeLibrary());
  ASSERT_TRUE(cuda.ok()) << cuda.status();
  EXPECT_TRUE((*cuda)->Check(kCudaSuccess, "cuThing").ok());
  Status status = (*cuda)->Check(kCudaIllegalAddress, "cuThing");
  EXPECT_EQ(ToErrno(status), EIO);
  EXPECT_EQ(status.message(), "cuThing: CUDA_ERROR_ILLEGAL_ADDRESS (700): says the fake driver");
  EXPECT_EQ(ToErrno((*cuda)->Check(kCudaOutOfMemory, "cuMemAlloc")), ENOMEM);
}

// The child of a process that uses GPUs gets errors, neither crashes nor waits.
TEST(CudaLibrary, SaysThatItDoesNotSurviveAFork) {
  auto gpus = Gpus::Open({.library = FakeLibrary()});
  ASSERT_TRUE(gpus.ok()) << gpus.status();
  std::shared_ptr<Device> device = (*gpus)->devices().front();
  ASSERT_TRUE(device->State().ok());
  pid_t child = fork();
  if (child == 0) {
    bool told = ToErrno(device->State().status()) == EOWNERDEAD &&
                ToErrno((*gpus)->Classify(&child).status()) == EOWNERDEAD;
    device.reset();
    gpus->reset();
    _exit(told ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace nacre::gpu
