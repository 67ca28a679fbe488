#include "compat/cufile/parameters.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <mutex>
#include <string>

#include "compat/cufile/batch.h"
#include "compat/cufile/state.h"

namespace nacre::cufile {
namespace {

// In the order of NVIDIA's numbers: defaults, and the range that may be set (greatest 0: any).
struct SizeSetting {
  size_t value, least, greatest;
};
constexpr SizeSetting kSizes[] = {
    {0, 0, 3},               // profile_stats
    {128, 1, 256},           // execution: max_io_queue_depth
    {4, 0, 32},              // execution: max_io_threads
    {8192, 4, 0},            // execution: min_io_threshold_size_kb
    {4, 0, 8},               // execution: max_request_parallelism
    {1024, 64, 16384},       // properties: max_direct_io_size_kb
    {131072, 0, 0},          // properties: max_device_cache_size_kb
    {1024, 64, 16384},       // properties: per_buffer_cache_size_kb
    {33554432, 64, 0},       // properties: max_device_pinned_mem_size_kb
    {Batch::kMost, 1, 256},  // properties: io_batchsize
    {4, 4, 0},               // poll threshold_size_kb
    {5, 1, 1000},            // properties: batch_io_timeout_ms
};
constexpr bool kBools[] = {false, true, false, false, true, false, true, false, false, false, false, false};
constexpr int kSizeCount = std::size(kSizes), kBoolCount = std::size(kBools), kStringCount = 3;

struct Set {
  std::mutex mutex;
  size_t sizes[kSizeCount];
  bool bools[kBoolCount];
  std::string strings[kStringCount] = {"ERROR"};  // the first one: logging level

  Set() {
    for (int i = 0; i < kSizeCount; ++i) sizes[i] = kSizes[i].value;
    std::copy(std::begin(kBools), std::end(kBools), bools);
  }
};
Set& Values() {
  static Set& set = *new Set;
  return set;
}

// Settings are read when the driver opens.
CUfileError_t CheckClosed() { return Answer(State::Get().use_count() > 0 ? kDriverAlreadyOpen : kSuccess); }

}  // namespace

CUfileDrvProps_t Properties() {
  CUfileDrvProps_t properties{};
  properties.nvfs.poll_thresh_size = kSizes[10].value;
  properties.nvfs.max_direct_io_size = kSizes[5].value;
  properties.nvfs.dcontrolflags = 1u << 1;  // files that NVIDIA's kernel module does not know are allowed
  properties.fflags = 0xf;                  // dynamic routing, batches, streams, parallel I/O
  properties.max_device_cache_size = static_cast<unsigned>(kSizes[6].value);
  properties.max_device_pinned_mem_size = static_cast<unsigned>(kSizes[8].value);
  properties.max_batch_io_size = Batch::kMost;
  properties.max_batch_io_timeout_msecs = static_cast<unsigned>(kSizes[11].value);
  return properties;
}

CUfileError_t GetSize(int parameter, size_t* value) {
  if (value == nullptr || parameter < 0 || parameter >= kSizeCount) return Answer(kInvalidValue);
  std::lock_guard lock(Values().mutex);
  *value = Values().sizes[parameter];
  return Answer(kSuccess);
}

CUfileError_t SetSize(int parameter, size_t value) {
  if (parameter < 0 || parameter >= kSizeCount) return Answer(kInvalidValue);
  if (const CUfileError_t closed = CheckClosed(); closed.err != kSuccess) return closed;
  const SizeSetting& setting = kSizes[parameter];
  if (value < setting.least || (setting.greatest != 0 && value > setting.greatest))
    return Answer(kInvalidValue);
  std::lock_guard lock(Values().mutex);
  Values().sizes[parameter] = value;
  return Answer(kSuccess);
}

CUfileError_t GetSizeRange(int parameter, size_t* least, size_t* most) {
  if (least == nullptr || most == nullptr || parameter < 0 || parameter >= kSizeCount)
    return Answer(kInvalidValue);
  *least = kSizes[parameter].least;
  *most = kSizes[parameter].greatest == 0 ? SIZE_MAX : kSizes[parameter].greatest;
  return Answer(kSuccess);
}

CUfileError_t GetBool(int parameter, bool* value) {
  if (value == nullptr || parameter < 0 || parameter >= kBoolCount) return Answer(kInvalidValue);
  std::lock_guard lock(Values().mutex);
  *value = Values().bools[parameter];
  return Answer(kSuccess);
}

CUfileError_t SetBool(int parameter, bool value) {
  if (parameter < 0 || parameter >= kBoolCount) return Answer(kInvalidValue);
  if (const CUfileError_t closed = CheckClosed(); closed.err != kSuccess) return closed;
  std::lock_guard lock(Values().mutex);
  Values().bools[parameter] = value;
  return Answer(kSuccess);
}

CUfileError_t GetString(int parameter, char* text, int room) {
  if (text == nullptr || room <= 0 || parameter < 0 || parameter >= kStringCount)
    return Answer(kInvalidValue);
  std::lock_guard lock(Values().mutex);
  const std::string& value = Values().strings[parameter];
  if (value.size() >= static_cast<size_t>(room)) return Answer(kInvalidValue);
  std::memcpy(text, value.c_str(), value.size() + 1);
  return Answer(kSuccess);
}

CUfileError_t SetString(int parameter, const char* text) {
  if (text == nullptr || parameter < 0 || parameter >= kStringCount) return Answer(kInvalidValue);
  if (const CUfileError_t closed = CheckClosed(); closed.err != kSuccess) return closed;
  std::lock_guard lock(Values().mutex);
  Values().strings[parameter] = text;
  return Answer(kSuccess);
}

}  // namespace nacre::cufile
