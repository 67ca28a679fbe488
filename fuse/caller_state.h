// Whether a process that waits for an answer is on its way out, as /proc shows it. Internal to fuse/.
#pragma once

#include <cstdint>
#include <string>

namespace nacre::fuse {

enum class CallerState {
  kGoesOn,   // no signal, or one that the program handles or ignores
  kAskedTo,  // a signal is pending that asks a program to end, and it has a handler for that
  kKilled,   // a signal is pending that ends it as soon as it is let go
  kExiting,  // it has ended, and closes its files
  kUnseen,   // it lives in a pid namespace that cannot be seen from here, or is gone
};

// Of the thread with this id; 0 is unseen.
CallerState StateOfCaller(uint32_t thread_id);

// The same from the text of its /proc/ID/status and /proc/ID/stat.
CallerState StateOfCaller(const std::string& status, const std::string& stat);

}  // namespace nacre::fuse
