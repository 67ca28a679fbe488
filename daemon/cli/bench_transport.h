// The data plane by itself, as `nacre bench` measures it: a client and a server in this process, each with a
// thread of its own, and memory on both sides instead of caches and disks.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/status.h"
#include "daemon/cli/bench_figure.h"

namespace nacre::cli {

// `path`: as the key `transport` of the configuration; ENOTSUP where this machine has none such. `count`
// small requests one behind the other, `size` bytes in large ones, 16 at once. `show` is told what is going
// on.
StatusOr<std::vector<Figure>> MeasureTransport(const std::string& path, uint64_t size, uint64_t count,
                                               const std::function<void(const std::string&)>& show);

}  // namespace nacre::cli
