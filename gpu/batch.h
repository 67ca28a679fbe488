// Work that was handed to one CUDA stream, with the event that tells when it is done. Plain data of the
// engine's thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "gpu/cuda_abi.h"
#include "gpu/job.h"
#include "gpu/kernel_pieces.h"

namespace nacre::gpu {

using EngineClock = std::chrono::steady_clock;
using EngineTime = EngineClock::time_point;

// Pinned memory for the list of one kernel launch and, for checksums, what it answers.
struct LaunchList {
  static constexpr size_t kMostPieces = 4096;

  KernelPiece* pieces = nullptr;
  uint32_t* sums = nullptr;  // kPartsOfRun for each piece
  size_t count = 0;

  std::span<const KernelPiece> view(size_t from = 0) const { return {pieces + from, count - from}; }
  size_t room() const { return kMostPieces - count; }
};

// Where in a job the checksums of a launch belong.
struct SumRange {
  JobPtr job;
  size_t begin = 0;  // among the job's sums
  size_t runs = 0;   // of the launch, after those of the ranges before
};

struct Batch {
  CudaEvent event = nullptr;
  std::vector<JobPtr> jobs;
  std::vector<SumRange> sums;  // in the order of the list
  LaunchList* list = nullptr;
  size_t first_run = 0;  // of the list: where what is summed up begins
  uint64_t bytes = 0;
  EngineTime expected;
};

}  // namespace nacre::gpu
