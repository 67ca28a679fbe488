#include "server/metadata/lease_report.h"

#include <absl/strings/str_format.h>
#include <absl/strings/str_split.h>
#include <dirent.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>
#include <vector>

#include "rpc/convert.h"

namespace nacre::mds {
namespace {

constexpr size_t kMostFiles = 10'000;  // that are looked at; each costs some microseconds

uint64_t Milliseconds(Duration duration) {
  return static_cast<uint64_t>(std::max<int64_t>(0, duration / std::chrono::milliseconds(1)));
}

std::string ClientOf(Mds& mds, SessionId session) {
  const SessionPtr found = session != 0 ? mds.sessions.Find(session) : nullptr;
  return found != nullptr ? found->record.name : std::string();
}

proto::LeaseHeld::Mode ShownMode(proto::LeaseMode mode) {
  if (mode == proto::LEASE_SHARED) return proto::LeaseHeld::SHARED;
  return mode == proto::LEASE_WRITE ? proto::LeaseHeld::WRITE : proto::LeaseHeld::READ;
}

StatusOr<Fid> FindDirectory(Mds& mds, const std::string& path) {
  Fid fid = kRootFid;
  const std::vector<std::string> names = absl::StrSplit(path, '/', absl::SkipEmpty());
  for (const std::string& name : names) {
    ASSIGN_OR_RETURN(Entry entry, mds.tables->FindEntry(fid, name));
    if (entry.type != DT_DIR)
      return ErrnoError(ENOTDIR, absl::StrFormat("'%s' of %s is no directory", name, path));
    fid = entry.fid;
  }
  return fid;
}

struct Named {
  Fid fid;
  std::string name;  // empty: the directory itself
};

// The directory, and what lies in it and has leases of its own or is waited for: no directory, which is asked
// for by itself.
StatusOr<std::vector<Named>> Resources(Mds& mds, const Fid& directory, bool* more) {
  std::vector<Named> named = {{directory, ""}};
  ASSIGN_OR_RETURN(std::vector<Entry> entries, mds.tables->ListEntries(directory, 0, kMostFiles));
  *more = entries.size() == kMostFiles;
  for (Entry& entry : entries) {
    if (entry.type != DT_DIR) named.push_back({entry.fid, std::move(entry.name)});
  }
  return named;
}

void AddHeld(Mds& mds, const Named& of, Duration now, proto::LeasesOfReply* reply) {
  for (const LeaseGrant& grant : mds.leases.HoldersOf(of.fid)) {
    proto::LeaseHeld* held = reply->add_held();
    held->set_name(of.name);
    held->set_session(grant.session);
    held->set_client(ClientOf(mds, grant.session));
    held->set_mode(ShownMode(grant.mode));
    held->set_held_ms(Milliseconds(now - grant.since));
    held->set_asked_back(grant.revoking);
    if (grant.revoking) held->set_asked_back_ms(Milliseconds(now - grant.asked_back));
  }
}

void AddAwaited(Mds& mds, const std::vector<Named>& named, Duration now, proto::LeasesOfReply* reply) {
  std::vector<Fid> fids;
  for (const Named& one : named) fids.push_back(one.fid);
  for (const RecallWaits::Known& wait : mds.recall_waits.For(fids)) {
    const auto of = std::ranges::find_if(named, [&](const Named& one) {
      return std::ranges::find(wait.resources, one.fid) != wait.resources.end();
    });
    proto::LeaseAwaited* awaited = reply->add_awaited();
    awaited->set_name(of->name);
    awaited->set_session(wait.session);
    awaited->set_client(ClientOf(mds, wait.session));
    awaited->set_change(wait.change);
    awaited->set_waited_ms(Milliseconds(now - wait.since));
  }
}

}  // namespace

StatusOr<proto::LeasesOfReply> ReportLeases(Mds& mds, const std::string& path) {
  ASSIGN_OR_RETURN(const Fid directory, FindDirectory(mds, path));
  proto::LeasesOfReply reply;
  *reply.mutable_directory() = ToProto(directory);
  bool more = false;
  ASSIGN_OR_RETURN(std::vector<Named> named, Resources(mds, directory, &more));
  reply.set_more_files(more);
  const Duration now = mds.env.clock.Now();
  for (const Named& one : named) AddHeld(mds, one, now, &reply);
  AddAwaited(mds, named, now, &reply);
  const LeaseTable::Refused refused = mds.leases.WhyNot(directory);
  reply.set_none_granted_ms(Milliseconds(refused.until - now));
  reply.set_no_write_granted_ms(Milliseconds(refused.write_until - now));
  reply.set_changes(refused.changes);
  return reply;
}

}  // namespace nacre::mds
