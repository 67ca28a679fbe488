#include "gpu/pointer_info.h"

#include <absl/hash/hash.h>
#include <absl/strings/str_format.h>

#include <array>
#include <cerrno>

namespace nacre::gpu {

StatusOr<PointerInfo> QueryPointer(const CudaLibrary& cuda, uint64_t address) {
  PointerInfo info;
  unsigned managed = 0, whole = 0;
  std::array attributes{
      int{kCudaPointerMemoryType}, int{kCudaPointerIsManaged},     int{kCudaPointerIpcCapable},
      int{kCudaPointerOrdinal},    int{kCudaPointerRangeStart},    int{kCudaPointerRangeSize},
      int{kCudaPointerBufferId},   int{kCudaPointerDevicePointer}, int{kCudaPointerContext}};
  std::array<void*, 9> values{&info.memory_type, &managed,        &whole,          &info.ordinal, &info.start,
                              &info.size,        &info.buffer_id, &info.on_device, &info.context};
  CudaResult result =
      cuda->PointerGetAttributes(attributes.size(), attributes.data(), values.data(), address);
  // A context without unified addressing answers so for memory that is not CUDA's.
  if (result == kCudaInvalidContext || result == kCudaInvalidValue) return PointerInfo{};
  RETURN_IF_ERROR(cuda.Check(result, absl::StrFormat("cuPointerGetAttributes(0x%x)", address)));
  info.managed = managed != 0;
  info.whole = whole != 0;
  return info;
}

StatusOr<PointerInfo> QuerySpan(const CudaLibrary& cuda, uint64_t address, uint64_t size) {
  ASSIGN_OR_RETURN(PointerInfo info, QueryPointer(cuda, address));
  while (info.memory_type == kCudaMemoryDevice && !info.whole && info.size > 0 &&
         info.end() - address < size) {
    ASSIGN_OR_RETURN(PointerInfo next, QueryPointer(cuda, info.end()));
    if (next.memory_type != info.memory_type || next.ordinal != info.ordinal ||
        next.managed != info.managed || next.start != info.end() || next.size == 0)
      break;
    info.size += next.size;
    info.buffer_id = absl::HashOf(info.buffer_id, next.buffer_id);
  }
  return info;
}

Status CheckContext(const PointerInfo& info, uint64_t address, const Context& context) {
  if (info.context == nullptr || info.context == context.handle()) return OkStatus();
  return OtherContext(info, address);
}

Status OtherContext(const PointerInfo& info, uint64_t address) {
  return ErrnoError(
      EINVAL, absl::StrFormat("0x%x is memory of another CUDA context than cuda:%d's primary one: "
                              "allocate it with that one current (cuDevicePrimaryCtxRetain; the runtime "
                              "API and PyTorch use it)",
                              address, info.ordinal));
}

Status SpanChecker::Check(uint64_t address, uint64_t size) {
  auto inside = [&](const PointerInfo& info) {
    return address >= info.start && address < info.end() && info.end() - address >= size;
  };
  if (inside(last_)) return OkStatus();
  ASSIGN_OR_RETURN(PointerInfo info, QuerySpan(context_.cuda(), address, size));
  if (info.memory_type != kCudaMemoryDevice)
    return ErrnoError(EFAULT, absl::StrFormat("0x%x is no memory of a GPU: was it freed?", address));
  if (info.ordinal != context_.ordinal())
    return ErrnoError(EINVAL, absl::StrFormat("0x%x is memory of cuda:%d, not of cuda:%d", address,
                                              info.ordinal, context_.ordinal()));
  RETURN_IF_ERROR(CheckContext(info, address, context_));
  if (!inside(info))
    return ErrnoError(EFAULT, absl::StrFormat("%d bytes at 0x%x leave their allocation, which ends at 0x%x",
                                              size, address, info.end()));
  last_ = info;
  return OkStatus();
}

}  // namespace nacre::gpu
