// Services that NICs need of a GPU: memory they can register, and order between their accesses and the GPU's.
#include <absl/strings/str_format.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "gpu/device.h"
#include "gpu/device_state.h"
#include "gpu/nvml.h"
#include "gpu/pointer_info.h"

namespace nacre::gpu {
namespace {

uint64_t AddressOfSpan(std::span<const std::byte> memory) {
  return reinterpret_cast<uint64_t>(memory.data());
}

// Files in sysfs of the modules that let NICs register a GPU's addresses, the older modules included.
constexpr const char* kPeerMemorySigns[] = {
    "module/nvidia_peermem/version", "kernel/mm/memory_peers/nv_mem/version",
    "kernel/mm/memory_peers/nv_mem_nc/version", "module/nv_peer_mem/version"};

}  // namespace

StatusOr<DmaBuf> Device::ExportDmaBuf(std::span<const std::byte> memory) {
  if (cuda_->operator->()->MemGetHandleForAddressRange == nullptr)
    return ErrnoError(EOPNOTSUPP,
                      absl::StrFormat("the driver (CUDA %s) exports no dma-bufs; CUDA 11.7 and newer do",
                                      VersionText(cuda_->driver_version())));
  if (!info_.dma_buf)
    return ErrnoError(EOPNOTSUPP,
                      absl::StrFormat("%s exports no dma-bufs: the kernel's NVIDIA driver must be the one "
                                      "with the open modules, the kernel 5.12 or newer",
                                      name()));
  ASSIGN_OR_RETURN(std::shared_ptr<DeviceState> state, State());
  SpanChecker checker(*state->context());
  RETURN_IF_ERROR(checker.Check(AddressOfSpan(memory), memory.size()));
  // Whole pages, but never more: the rest of the allocation may be mapped otherwise.
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  uint64_t begin = AddressOfSpan(memory) / page * page;
  uint64_t end = (AddressOfSpan(memory) + memory.size() + page - 1) / page * page;
  UseContext use(*state->context());
  RETURN_IF_ERROR(use.status());
  int fd = -1;
  CudaResult result = (*cuda_)->MemGetHandleForAddressRange(&fd, begin, end - begin, kCudaDmaBufHandle, 0);
  if (result == kCudaSuccess) return DmaBuf(fd, AddressOfSpan(memory) - begin, memory);
  return ErrnoError(result == kCudaOutOfMemory ? ENOMEM : EOPNOTSUPP,
                    absl::StrFormat("%d bytes at 0x%x cannot be exported as a dma-buf: %s", end - begin,
                                    begin, cuda_->Check(result, "cuMemGetHandleForAddressRange").message()));
}

Status Device::SynchronizeCopies(std::span<const std::byte> memory) {
  ASSIGN_OR_RETURN(std::shared_ptr<DeviceState> state, State());
  UseContext use(*state->context());
  RETURN_IF_ERROR(use.status());
  unsigned on = 1;
  return cuda_->Check((*cuda_)->PointerSetAttribute(&on, kCudaPointerSyncMemops, AddressOfSpan(memory)),
                      "cuPointerSetAttribute(SYNC_MEMOPS)");
}

Status Device::FlushRemoteWrites() {
  if (info_.rdma_writes_ordered) return OkStatus();
  ASSIGN_OR_RETURN(std::shared_ptr<DeviceState> state, State());
  if ((*cuda_)->FlushGPUDirectRDMAWrites == nullptr)
    return ErrnoError(EOPNOTSUPP, "the driver cannot flush what a NIC has written; CUDA 11.3 and newer can");
  UseContext use(*state->context());
  RETURN_IF_ERROR(use.status());
  constexpr int kCurrentContext = 0;
  return cuda_->Check((*cuda_)->FlushGPUDirectRDMAWrites(kCurrentContext, kCudaFlushToOwner),
                      "cuFlushGPUDirectRDMAWrites");
}

StatusOr<std::span<std::byte>> Device::TrialMemory() {
  ASSIGN_OR_RETURN(std::shared_ptr<DeviceState> state, State());
  return state->TrialMemory(kTrialBytes);
}

Status Device::PeerMemory() {
  if (!info_.gpu_direct_rdma)
    return ErrnoError(EOPNOTSUPP, absl::StrFormat("%s has no GPUDirect RDMA", name()));
  for (const char* sign : kPeerMemorySigns) {
    std::error_code error;
    if (std::filesystem::exists(std::filesystem::path(options_.sysfs) / sign, error)) return OkStatus();
  }
  return ErrnoError(EOPNOTSUPP, "the kernel module nvidia-peermem is not loaded: modprobe nvidia-peermem");
}

uint64_t Device::RdmaBudget() {
  constexpr uint64_t kPercent = 80;
  const StatusOr<uint64_t> bar1 = Bar1Bytes(cuda_->nvml_path(), info_.pci_bus_id);
  return bar1.ok() ? *bar1 / 100 * kPercent : UINT64_MAX;
}

StatusOr<uint64_t> Device::BufferId(std::span<const std::byte> memory) {
  ASSIGN_OR_RETURN(std::shared_ptr<DeviceState> state, State());
  SpanChecker checker(*state->context());
  RETURN_IF_ERROR(checker.Check(AddressOfSpan(memory), memory.size()));
  return checker.last().buffer_id;
}

}  // namespace nacre::gpu
