// Hostile layouts, sizes and durations: what is accepted is printed so that it reads back the same.
#include <cstdlib>

#include "client/layout_text.h"
#include "common/units.h"

namespace nacre {
namespace {

void Check(std::string_view text) {
  if (auto layout = ParseLayout(text); layout.ok()) {
    auto again = ParseLayout(FormatLayout(*layout));
    if (!again.ok() || again->SerializeAsString() != layout->SerializeAsString()) std::abort();
  }
  if (auto size = ParseSize(text); size.ok() && *ParseSize(ExactSize(*size)) != *size) std::abort();
  if (auto duration = ParseDuration(text);
      duration.ok() && *ParseDuration(ExactDuration(*duration)) != *duration) {
    std::abort();
  }
}

}  // namespace
}  // namespace nacre

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  nacre::Check({reinterpret_cast<const char*>(data), size});
  return 0;
}
