#include "tests/gpu/fake_cuda/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <string>
#include <vector>

#include "tests/gpu/fake_cuda/knobs.h"
#include "tests/gpu/fake_cuda/streams.h"

namespace nacre::fake_cuda {
namespace {

using gpu::CudaResult;

constexpr size_t kPage = 4096;

size_t RoundUp(size_t size) { return (size + kPage - 1) / kPage * kPage; }

// Whether the CPU may write to the page of an address.
bool Writable(const void* data) {
  auto address = reinterpret_cast<uint64_t>(data);
  std::FILE* maps = std::fopen("/proc/self/maps", "re");
  if (maps == nullptr) return true;
  bool writable = false;
  uint64_t begin = 0, end = 0;
  char access[8] = "";
  while (std::fscanf(maps, "%" SCNx64 "-%" SCNx64 " %7s%*[^\n]", &begin, &end, access) == 3) {
    if (address >= begin && address < end) writable = access[1] == 'w';
  }
  std::fclose(maps);
  return writable;
}

uint64_t Number(const void* data) { return reinterpret_cast<uint64_t>(data); }

}  // namespace

Memory& GetMemory() {
  static auto* memory = new Memory;
  return *memory;
}

uint64_t Memory::ReusableAddress(size_t mapped) {
  auto freed = freed_.find(mapped);
  if (GetKnobs().reuse == 0 || freed == freed_.end()) return 0;
  uint64_t address = freed->second;
  freed_.erase(freed);
  return address;
}

CudaResult Memory::Allocate(CUctx_st* context, size_t size, uint64_t* address) {
  if (size == 0) return gpu::kCudaInvalidValue;
  std::lock_guard lock(mutex_);
  auto limit = static_cast<size_t>(GetKnobs().memory.load());
  if (limit != 0 && used_ + size > limit) return gpu::kCudaOutOfMemory;
  size_t mapped = RoundUp(size);
  int fd = memfd_create("nacre-fake-gpu", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, mapped) != 0) return gpu::kCudaOutOfMemory;
  auto* wanted = reinterpret_cast<void*>(ReusableAddress(mapped));
  int fixed = wanted != nullptr ? MAP_FIXED_NOREPLACE : 0;
  void* device = mmap(wanted, mapped, PROT_NONE, MAP_SHARED | fixed, fd, 0);
  if (device == MAP_FAILED) device = mmap(nullptr, mapped, PROT_NONE, MAP_SHARED, fd, 0);
  void* alias = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (device == MAP_FAILED || alias == MAP_FAILED) return gpu::kCudaOutOfMemory;
  int segments = std::clamp<long>(GetKnobs().segments, 1, mapped / kPage);
  Allocation allocation{Number(device), size,           static_cast<std::byte*>(alias), fd, context,
                        segments,       next_buffer_id_};
  next_buffer_id_ += segments;
  used_ += size;
  allocations_[allocation.address] = allocation;
  *address = allocation.address;
  return gpu::kCudaSuccess;
}

CudaResult Memory::Free(uint64_t address) {
  std::lock_guard lock(mutex_);
  auto found = allocations_.find(address);
  if (found == allocations_.end()) return gpu::kCudaInvalidValue;
  const Allocation& allocation = found->second;
  size_t mapped = RoundUp(allocation.size);
  munmap(reinterpret_cast<void*>(address), mapped);
  munmap(allocation.alias, mapped);
  close(allocation.fd);
  used_ -= allocation.size;
  freed_[mapped] = address;
  allocations_.erase(found);
  return gpu::kCudaSuccess;
}

void Memory::FreeAll(const CUctx_st* context) {
  std::lock_guard lock(mutex_);
  std::vector<uint64_t> addresses;
  for (const auto& [address, allocation] : allocations_) {
    if (allocation.context == context) addresses.push_back(address);
  }
  for (uint64_t address : addresses) Free(address);
}

CudaResult Memory::AllocatePinned(size_t size, void** data) {
  std::lock_guard lock(mutex_);
  auto limit = static_cast<size_t>(GetKnobs().pinned.load());
  if (size == 0 || (limit != 0 && used_pinned_ + size > limit)) return gpu::kCudaOutOfMemory;
  void* memory = mmap(nullptr, RoundUp(size), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return gpu::kCudaOutOfMemory;
  used_pinned_ += size;
  pinned_[Number(memory)] = {size, true};
  *data = memory;
  return gpu::kCudaSuccess;
}

CudaResult Memory::FreePinned(void* data) {
  std::lock_guard lock(mutex_);
  auto found = pinned_.find(Number(data));
  if (found == pinned_.end() || !found->second.allocated) return gpu::kCudaInvalidValue;
  munmap(data, RoundUp(found->second.size));
  used_pinned_ -= found->second.size;
  pinned_.erase(found);
  return gpu::kCudaSuccess;
}

CudaResult Memory::Register(void* data, size_t size, bool read_only) {
  if (long error = GetKnobs().register_error; error != 0) return error;
  if (data == nullptr || size == 0) return gpu::kCudaInvalidValue;
  if (read_only && GetKnobs().read_only_register == 0) return gpu::kCudaNotSupported;
  if (!read_only && !Writable(data)) return gpu::kCudaInvalidValue;
  std::lock_guard lock(mutex_);
  auto after = pinned_.lower_bound(Number(data) + size);
  if (after != pinned_.begin()) {
    auto [start, before] = *std::prev(after);
    if (start + before.size > Number(data)) return gpu::kCudaAlreadyRegistered;
  }
  pinned_[Number(data)] = {size, false};
  return gpu::kCudaSuccess;
}

CudaResult Memory::Unregister(void* data) {
  std::lock_guard lock(mutex_);
  auto found = pinned_.find(Number(data));
  if (found == pinned_.end() || found->second.allocated) return gpu::kCudaNotRegistered;
  pinned_.erase(found);
  return gpu::kCudaSuccess;
}

const Allocation* Memory::FindAllocation(uint64_t address, size_t size) {
  auto after = allocations_.upper_bound(address);
  if (after == allocations_.begin()) return nullptr;
  const Allocation& allocation = std::prev(after)->second;
  uint64_t into = address - allocation.address;
  return into < allocation.size && allocation.size - into >= size ? &allocation : nullptr;
}

std::byte* Memory::Alias(uint64_t address, size_t size) {
  std::lock_guard lock(mutex_);
  const Allocation* allocation = FindAllocation(address, size);
  return allocation != nullptr ? allocation->alias + (address - allocation->address) : nullptr;
}

bool Memory::IsPinned(const void* data, size_t size) {
  std::lock_guard lock(mutex_);
  auto after = pinned_.upper_bound(Number(data));
  if (after == pinned_.begin()) return false;
  auto [start, range] = *std::prev(after);
  uint64_t into = Number(data) - start;
  return into < range.size && range.size - into >= size;
}

bool Memory::IsPartlyPinned(const void* data, size_t size) {
  std::lock_guard lock(mutex_);
  if (IsPinned(data, size)) return false;
  auto after = pinned_.lower_bound(Number(data) + size);
  if (after == pinned_.begin()) return false;
  auto [start, range] = *std::prev(after);
  return start + range.size > Number(data);
}

Range Memory::Find(uint64_t address) {
  std::lock_guard lock(mutex_);
  if (const Allocation* allocation = FindAllocation(address, 1)) {
    size_t segment = RoundUp((allocation->size + allocation->segments - 1) / allocation->segments);
    uint64_t number = (address - allocation->address) / segment;
    return {allocation->address + number * segment,
            std::min(segment, allocation->size - number * segment),
            gpu::kCudaMemoryDevice,
            allocation->context->ordinal,
            allocation->first_buffer_id + number,
            allocation->segments == 1,
            allocation->context};
  }
  auto after = pinned_.upper_bound(address);
  if (after == pinned_.begin()) return {};
  auto [start, range] = *std::prev(after);
  if (address - start >= range.size) return {};
  return {start, range.size, gpu::kCudaMemoryHost, 0, 0};
}

CudaResult Memory::ExportDmaBuf(uint64_t address, size_t size, int* fd) {
  if (long error = GetKnobs().export_error; error != 0) return error;
  if (address % kPage != 0 || size % kPage != 0 || size == 0) return gpu::kCudaInvalidValue;
  std::lock_guard lock(mutex_);
  const Allocation* allocation = FindAllocation(address, 1);
  if (allocation == nullptr || address - allocation->address + size > RoundUp(allocation->size))
    return gpu::kCudaInvalidValue;
  // A description of its own, whose position tells where the range begins.
  std::string path = "/proc/self/fd/" + std::to_string(allocation->fd);
  *fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (*fd < 0) return gpu::kCudaNotSupported;
  lseek(*fd, static_cast<off_t>(address - allocation->address), SEEK_SET);
  return gpu::kCudaSuccess;
}

long Memory::allocations() {
  std::lock_guard lock(mutex_);
  return static_cast<long>(allocations_.size());
}

long Memory::CountPinned(bool allocated) {
  std::lock_guard lock(mutex_);
  return std::count_if(pinned_.begin(), pinned_.end(),
                       [&](const auto& entry) { return entry.second.allocated == allocated; });
}
long Memory::pinned() { return CountPinned(true); }
long Memory::registered() { return CountPinned(false); }

}  // namespace nacre::fake_cuda
