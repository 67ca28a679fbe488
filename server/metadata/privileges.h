// Takes away privileges that a file gives to whoever runs it, when its content or owner changes: setuid and
// setgid bits (permission.h), and the file's capability, an extended attribute that the kernel reads at exec.
#pragma once

#include <string_view>

#include "common/status.h"
#include "server/metadata/tables.h"

namespace nacre::mds {

inline constexpr std::string_view kCapabilityXattr = "security.capability";

// Removes the capability of an inode that the transaction has loaded and writes, if it has one.
Status TakeCapability(Tables& tables, Transaction* transaction, Inode* inode);

}  // namespace nacre::mds
