#include "fuse/callers.h"

#include "fuse/libfuse.h"

namespace nacre::fuse {
namespace {

constexpr Duration kTrust = 1s;
constexpr size_t kMaxKnown = 4096;  // then all are forgotten

std::vector<uint32_t> ReadGroups(fuse_req* request) {
  std::vector<gid_t> groups(64);
  int count = fuse_req_getgroups(request, static_cast<int>(groups.size()), groups.data());
  if (count > static_cast<int>(groups.size())) {
    groups.resize(static_cast<size_t>(count));
    count = fuse_req_getgroups(request, static_cast<int>(groups.size()), groups.data());
  }
  if (count < 0) return {};  // the process is gone or lives in another pid namespace
  groups.resize(std::min(groups.size(), static_cast<size_t>(count)));
  return {groups.begin(), groups.end()};
}

}  // namespace

client::Caller Callers::Of(fuse_req* request) {
  const fuse_ctx* context = fuse_req_ctx(request);
  client::Caller caller;
  caller.uid = context->uid;
  caller.gid = context->gid;
  caller.pid = static_cast<uint32_t>(context->pid);
  if (caller.uid != 0 && caller.pid != 0) caller.groups = GroupsOf(request, caller);
  return caller;
}

std::vector<uint32_t> Callers::GroupsOf(fuse_req* request, const client::Caller& caller) {
  Duration now = clock_.Now();
  {
    std::lock_guard lock(mutex_);
    auto it = by_pid_.find(caller.pid);
    if (it != by_pid_.end() && it->second.uid == caller.uid && it->second.gid == caller.gid &&
        now < it->second.until) {
      return it->second.groups;
    }
  }
  std::vector<uint32_t> groups = ReadGroups(request);
  std::lock_guard lock(mutex_);
  if (by_pid_.size() >= kMaxKnown) by_pid_.clear();
  by_pid_[caller.pid] = Known{caller.uid, caller.gid, groups, now + kTrust};
  return groups;
}

}  // namespace nacre::fuse
