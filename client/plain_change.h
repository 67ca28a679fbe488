// Which changes have an outcome that is certain from what is known here, so that they may be answered before
// the MDS has done them. Pure functions; the mutexes of the inodes are held.
#pragma once

#include <string>

#include "client/inode.h"

namespace nacre::client {

bool PlainName(const std::string& name);

// Whether the outcome of the mknod is certain, as far as it depends on what is made: its type, mode and
// target.
bool PlainType(const Caller& caller, const proto::Mknod& mknod);

// Whether the caller must own what it takes out of the directory.
bool IsSticky(const Inode& directory, const Caller& caller);

// Whether the caller may remove it, as a directory or as anything else.
bool Removable(const Inode& victim, const Caller& caller, bool sticky, bool directory);

bool PlainSetattr(const Inode& inode, const Caller& caller, const SetAttributes& set);

}  // namespace nacre::client
