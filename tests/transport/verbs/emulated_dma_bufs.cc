#include "tests/transport/verbs/emulated_dma_bufs.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <map>
#include <mutex>
#include <span>

namespace nacre::verbs {
namespace {

using RegisterAt = ibv_mr*(ibv_pd* pd, void* data, size_t size, uint64_t address, int access);

std::mutex g_mappings_mutex;
std::map<ibv_mr*, std::span<std::byte>> g_mappings;
decltype(&::ibv_dereg_mr) g_deregister = nullptr;

RegisterAt* FindRegisterAt() {
  void* library = ::dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
  return library == nullptr ? nullptr : reinterpret_cast<RegisterAt*>(::dlsym(library, "ibv_reg_mr_iova"));
}

ibv_mr* RegisterMapped(ibv_pd* pd, uint64_t offset, size_t size, uint64_t address, int fd, int access) {
  static RegisterAt* const register_at = FindRegisterAt();
  constexpr uint64_t kPage = 4096;
  const off_t begin = ::lseek(fd, 0, SEEK_CUR);
  const size_t mapped = (offset + size + kPage - 1) / kPage * kPage;
  void* memory =
      begin < 0 ? MAP_FAILED : ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd, begin);
  if (memory == MAP_FAILED) return nullptr;
  auto* bytes = static_cast<std::byte*>(memory);
  ibv_mr* mr = register_at(pd, bytes + offset, size, address, access);
  if (mr == nullptr) {
    const int error = errno;
    ::munmap(memory, mapped);
    errno = error;
    return nullptr;
  }
  std::lock_guard lock(g_mappings_mutex);
  g_mappings[mr] = {bytes, mapped};
  return mr;
}

int DeregisterMapped(ibv_mr* mr) {
  std::span<std::byte> mapping;
  {
    std::lock_guard lock(g_mappings_mutex);
    if (auto found = g_mappings.find(mr); found != g_mappings.end()) {
      mapping = found->second;
      g_mappings.erase(found);
    }
  }
  const int result = g_deregister(mr);
  if (!mapping.empty()) ::munmap(mapping.data(), mapping.size());
  return result;
}

}  // namespace

EmulatedDmaBufs::EmulatedDmaBufs() {
  const StatusOr<const Ibverbs*> real = LoadIbverbs();
  if (!real.ok()) return;
  static const Ibverbs table = [](Ibverbs copy) {
    g_deregister = copy.dereg_mr;
    copy.reg_dmabuf_mr = RegisterMapped;
    copy.dereg_mr = DeregisterMapped;
    return copy;
  }(**real);
  UseIbverbs(&table);
}

}  // namespace nacre::verbs
