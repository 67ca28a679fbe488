// Sizes and durations as people write them. Stateless. Errors name the text and what is allowed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/clock.h"
#include "common/status.h"

namespace nacre {

// "4096", "64K", "64KiB", "1M", "10GiB", "2T": units are powers of 1024; case does not matter.
StatusOr<uint64_t> ParseSize(std::string_view text);

// "250ms", "5s", "2min", "1h"; also "1.5s".
StatusOr<Duration> ParseDuration(std::string_view text);

// The shortest text that ParseSize turns into the same number: "64M", "4097".
std::string ExactSize(uint64_t bytes);

// For people, three digits: "1.46 GiB", "512 B".
std::string HumanSize(uint64_t bytes);

// The shortest text that ParseDuration turns into the same duration: "5s", "250ms".
std::string ExactDuration(Duration duration);

}  // namespace nacre
