#include "client/caller.h"

namespace nacre::client {

void SetCaller(const Caller& caller, proto::MetadataRequest* request) {
  proto::Credentials* credentials = request->mutable_credentials();
  credentials->set_uid(caller.uid);
  credentials->set_gid(caller.gid);
  for (uint32_t group : caller.groups) credentials->add_groups(group);
}

}  // namespace nacre::client
