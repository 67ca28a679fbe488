#include "gpu/host_pins.h"

#include <absl/strings/str_format.h>

#include <cerrno>

#include "gpu/pointer_info.h"

namespace nacre::gpu {

std::shared_ptr<void> HostPins::Find(std::span<const std::byte> range) {
  std::lock_guard lock(mutex_);
  auto token = tokens_.find({range.data(), range.size()});
  return token != tokens_.end() ? token->second.lock() : nullptr;
}

bool HostPins::Unpinning(std::span<const std::byte> range) {
  std::lock_guard lock(mutex_);
  auto token = tokens_.find({range.data(), range.size()});
  return token != tokens_.end() && token->second.expired();
}

StatusOr<std::shared_ptr<void>> HostPins::Pin(std::shared_ptr<Context> context,
                                              std::span<const std::byte> range, bool read_only) {
  std::lock_guard pinning(pinning_);
  if (std::shared_ptr<void> token = Find(range)) return token;
  if (Unpinning(range)) return ErrnoError(EBUSY, "the memory is being unpinned");
  UseContext use(*context);
  RETURN_IF_ERROR(use.status());
  const CudaLibrary& cuda = context->cuda();
  auto* data = const_cast<std::byte*>(range.data());
  unsigned flags = kCudaHostRegisterPortable | (read_only ? kCudaHostRegisterReadOnly : 0);
  CudaResult result = cuda->MemHostRegister(data, range.size(), flags);
  if (result == kCudaAlreadyRegistered) return std::make_shared<std::span<const std::byte>>(range);
  if (result != kCudaSuccess)
    return ErrnoError(EOPNOTSUPP, absl::StrFormat("%d bytes at %p cannot be pinned: %s", range.size(),
                                                  static_cast<const void*>(data),
                                                  cuda.Check(result, "cuMemHostRegister").message()));
  // Kernels read it by this address, unless the device knows it by another.
  StatusOr<PointerInfo> info = QueryPointer(cuda, reinterpret_cast<uint64_t>(data));
  if (info.ok() && info->on_device == reinterpret_cast<uint64_t>(data)) pinned_->Add(range);
  auto unpin = [self = shared_from_this(), context, range](void*) { self->Unpin(*context, range); };
  std::shared_ptr<void> token(data, unpin);
  std::lock_guard lock(mutex_);
  tokens_[{range.data(), range.size()}] = token;
  return token;
}

void HostPins::Unpin(const Context& context, std::span<const std::byte> range) {
  if (!context.Usable()) return;
  pinned_->Remove(range);
  UseContext use(context);
  if (use.status().ok()) context.cuda()->MemHostUnregister(const_cast<std::byte*>(range.data()));
  std::lock_guard lock(mutex_);
  tokens_.erase({range.data(), range.size()});
}

}  // namespace nacre::gpu
