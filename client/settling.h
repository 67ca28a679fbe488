// Marks inodes that a mutation touches whose outcome the MDS decides.
#pragma once

#include <vector>

#include "client/early_changes.h"

namespace nacre::client {

// From before the mutation is sent until its reply has been taken in: nothing of the inodes is answered early
// meanwhile, and fsync of each has to see it synced from then on. Null pointers count for nothing.
class Settling {
 public:
  Settling(EarlyChanges& early, std::vector<InodePtr> inodes);
  ~Settling();
  Settling(const Settling&) = delete;
  Settling& operator=(const Settling&) = delete;

 private:
  const EarlyChanges& early_;
  const std::vector<InodePtr> inodes_;
};

}  // namespace nacre::client
