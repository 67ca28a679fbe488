// Permission checks, as Linux makes them. User 0 has the rights of CAP_DAC_OVERRIDE, CAP_FOWNER, CAP_CHOWN
// and CAP_FSETID. Pure functions over an inode and the caller; errors are EACCES and EPERM.
#pragma once

#include <cstdint>
#include <vector>

#include "common/status.h"
#include "proto/metadata.pb.h"
#include "server/metadata/records.h"

namespace nacre::mds {

inline constexpr uint32_t kMayRead = 4, kMayWrite = 2, kMayExecute = 1;

struct Caller {
  uint32_t uid = 0;
  uint32_t gid = 0;
  std::vector<uint32_t> groups;

  bool IsRoot() const { return uid == 0; }
  bool InGroup(uint32_t group) const;
};

Caller FromProto(const proto::Credentials& credentials);

// EACCES unless all bits of `want` are granted.
Status CheckAccess(const Caller& caller, const Inode& inode, uint32_t want);

// EPERM unless the caller owns the inode (or is root).
Status CheckOwner(const Caller& caller, const Inode& inode);

// Write and search on the directory, as for any change of its entries.
Status CheckDirectoryChange(const Caller& caller, const Inode& directory);

// The above, and EPERM by the sticky bit: who removes or renames `victim` must own it or the directory.
Status CheckRemoval(const Caller& caller, const Inode& directory, const Inode& victim);

// Mode bits after a write, truncation or change of owner by anybody who is not privileged: without setuid,
// and without setgid where the group may execute.
uint32_t ModeWithoutSetuid(uint32_t mode);

// uid, gid and mode of a new inode in this directory: a setgid directory hands on its group, and to
// directories its bit.
void InheritFrom(const Caller& caller, const Inode& directory, Inode* inode);

}  // namespace nacre::mds
