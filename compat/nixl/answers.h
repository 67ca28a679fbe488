// Errors of Nacre as NIXL knows them. NIXL has a number only: the words go to stderr, where its own log goes.
#pragma once

#include <backend/backend_engine.h>

#include <nacre/nacre.hpp>
#include <string>

namespace nacre::nixl {

// Of an errno value; 0 is NIXL_SUCCESS.
nixl_status_t StatusOf(int code);

// Says on stderr why something failed.
void Say(const std::string& words);

// Says why, and returns the status.
nixl_status_t Fail(nixl_status_t status, const std::string& words);
nixl_status_t Fail(const Error& error, const std::string& what);

}  // namespace nacre::nixl
