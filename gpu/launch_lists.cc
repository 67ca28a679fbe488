#include "gpu/launch_lists.h"

namespace nacre::gpu {
namespace {

constexpr size_t kMostLists = 16;  // that many launches are queued at once at most

}  // namespace

LaunchLists::~LaunchLists() {
  for (const auto& list : lists_) context_->cuda()->MemFreeHost(list->pieces);
}

void LaunchLists::AllocateAll() {
  while (Allocate()) {
  }
}

LaunchList* LaunchLists::Take() {
  if (free_.empty() && !Allocate()) return nullptr;
  LaunchList* list = free_.back();
  free_.pop_back();
  list->count = 0;
  return list;
}

void LaunchLists::Return(LaunchList* list) { free_.push_back(list); }

bool LaunchLists::Allocate() {
  if (lists_.size() == kMostLists) return false;
  void* memory = nullptr;
  size_t size = LaunchList::kMostPieces * (sizeof(KernelPiece) + kPartsOfRun * sizeof(uint32_t));
  if (context_->cuda()->MemHostAlloc(&memory, size, kCudaHostAllocPortable) != kCudaSuccess) return false;
  auto list = std::make_unique<LaunchList>();
  list->pieces = static_cast<KernelPiece*>(memory);
  list->sums = reinterpret_cast<uint32_t*>(list->pieces + LaunchList::kMostPieces);
  free_.push_back(list.get());
  lists_.push_back(std::move(list));
  return true;
}

}  // namespace nacre::gpu
