#include "transport/verbs/device_memory.h"

#include <absl/strings/str_format.h>

#include <algorithm>
#include <cerrno>
#include <vector>

namespace nacre::verbs {
namespace {

// Windows cannot be bound to dma-bufs, so there are none for device memory at all.
constexpr int kDeviceMemoryAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;

StatusOr<std::unique_ptr<Registration>> RegisterAsDmaBuf(const std::shared_ptr<Domain>& domain,
                                                         MemoryDevice& device, std::span<std::byte> memory,
                                                         std::optional<DmaBuf>* exported) {
  if (domain->ibverbs().reg_dmabuf_mr == nullptr)
    return ErrnoError(ENOTSUP, "libibverbs has no ibv_reg_dmabuf_mr: install rdma-core 34 or newer");
  if (!exported->has_value()) {
    ASSIGN_OR_RETURN(*exported, device.ExportDmaBuf(memory));
  }
  return Registration::MakeDmaBuf(domain, **exported, kDeviceMemoryAccess);
}

StatusOr<std::unique_ptr<Registration>> RegisterAsPeerMemory(const std::shared_ptr<Domain>& domain,
                                                             MemoryDevice& device,
                                                             std::span<std::byte> memory) {
  RETURN_IF_ERROR(device.PeerMemory());
  return Registration::Make(domain, memory.data(), memory.size(), kDeviceMemoryAccess);
}

Status CanFlush(MemoryDevice& device) {
  const Status flushed = device.FlushRemoteWrites();
  if (flushed.ok()) return flushed;
  return ErrnoError(ENOTSUP, absl::StrFormat("what an RDMA device would write into %s might not be seen: %s",
                                             device.name(), flushed.message()));
}

}  // namespace

std::string_view Name(DeviceMechanism mechanism) {
  return mechanism == DeviceMechanism::kDmaBuf ? "dma-buf" : "peer memory";
}

StatusOr<std::unique_ptr<Registration>> RegisterBy(DeviceMechanism mechanism,
                                                   const std::shared_ptr<Domain>& domain,
                                                   MemoryDevice& device, std::span<std::byte> memory,
                                                   std::optional<DmaBuf>* exported) {
  return mechanism == DeviceMechanism::kDmaBuf ? RegisterAsDmaBuf(domain, device, memory, exported)
                                               : RegisterAsPeerMemory(domain, device, memory);
}

DeviceVerdict TryDeviceMemory(const std::shared_ptr<Domain>& domain, MemoryDevice& device) {
  const StatusOr<std::span<std::byte>> trial = device.TrialMemory();
  DeviceVerdict verdict;
  if (!trial.ok()) {
    verdict.lasting = ToErrno(trial.status()) != ENOMEM;
    verdict.status =
        ErrnoError(ENOTSUP, absl::StrFormat("RDMA device %s was not tried with %s: %s", domain->device(),
                                            device.name(), trial.status().message()));
    return verdict;
  }
  const std::span<std::byte> memory = trial->first(MemoryDevice::kTrialBytes);
  std::optional<DmaBuf> exported;
  for (DeviceMechanism mechanism : {DeviceMechanism::kDmaBuf, DeviceMechanism::kPeerMemory}) {
    const Status tried = RegisterBy(mechanism, domain, device, memory, &exported).status();
    verdict.mechanism = mechanism;
    if (tried.ok()) {
      verdict.status = CanFlush(device);
      return verdict;
    }
    verdict.lasting = verdict.lasting && ToErrno(tried) != ENOMEM;
    verdict.reason += absl::StrFormat("%s%s: %s", verdict.reason.empty() ? "" : "; ",
                                      AbslView(Name(mechanism)), tried.message());
  }
  verdict.status = ErrnoError(ENOTSUP, absl::StrFormat("RDMA device %s cannot write into %s: %s",
                                                       domain->device(), device.name(), verdict.reason));
  return verdict;
}

}  // namespace nacre::verbs
