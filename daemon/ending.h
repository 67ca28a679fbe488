// The wait of a program's main thread for its end.
#pragma once

#include "common/runtime.h"

namespace nacre {

// Until SIGTERM or SIGINT comes or `also` arrives. The signal's number; 0: `also`. A second signal while the
// process is ending kills it. Main thread only, once.
int WaitForEnd(Runtime& runtime, OneShot<Unit> also);

// A thread for each core, at most four: what the programs give their Runtime.
int DefaultThreads();

}  // namespace nacre
