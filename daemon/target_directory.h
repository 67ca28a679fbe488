// The directory of a target (an MDT or an OST): whether a target is in it, and that nobody but the server's
// user can look into it.
//
// A server starts on a directory that holds its target. A missing or empty directory is most often a disk
// that is not mounted, so it is made and formatted only when somebody asked for that. Main thread only.
// Errors name the directory and say what to do.
#pragma once

#include <functional>
#include <string>

#include "common/status.h"

namespace nacre {

enum class TargetKind { kMdt, kOst };

enum class TargetState {
  kNone,     // missing, or holds nothing but lost+found and process numbers
  kThere,    // holds a target, possibly a damaged one
  kForeign,  // holds something else
};
TargetState LookAtTarget(TargetKind kind, const std::string& directory);

// Everything that this process makes from now on belongs to its user alone (umask 0077).
void MakeFilesPrivate();

// OK if the target is there. Takes the rights of other users from the directory and from what is in it; a
// line in the log says so if there were any. ENOENT: there is none. EEXIST: there is something else.
// DATA_LOSS: a part of it is missing.
Status CheckTarget(TargetKind kind, const std::string& directory);

// The directory for a new target with those below it, 0700: made if it is missing (its parent must be there),
// else it must be empty.
Status MakeTargetDirectory(TargetKind kind, const std::string& directory);

// The same, and `fill` makes the target in it; what it has left there after an error is removed.
Status FillTarget(TargetKind kind, const std::string& directory, const std::function<Status()>& fill);

}  // namespace nacre
