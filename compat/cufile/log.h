// NACRE_CUFILE_LOG: which way files take, for people. A path, to which lines are added, or "stderr"; unset:
// silent. Thread-safe.
#pragma once

namespace nacre::cufile {

[[gnu::format(printf, 1, 2)]] void Log(const char* format, ...);

}  // namespace nacre::cufile
