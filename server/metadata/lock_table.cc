#include "server/metadata/lock_table.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <set>

#include "rpc/convert.h"

namespace nacre::mds {
namespace {

constexpr uint64_t kToTheEnd = (uint64_t{1} << 63) - 1;

Status WaitCancelled() { return ErrnoError(EINTR, "the wait for a lock was cancelled"); }

proto::LockRange Nothing(proto::LockRange lock) {
  lock.set_type(F_UNLCK);
  return lock;
}

}  // namespace

StatusOr<LockTable::Range> LockTable::Parse(SessionId session, const proto::LockRange& lock) {
  if (lock.type() != F_RDLCK && lock.type() != F_WRLCK && lock.type() != F_UNLCK) {
    return ErrnoError(
        EINVAL, absl::StrFormat("a lock of type %d: allowed are F_RDLCK, F_WRLCK, F_UNLCK", lock.type()));
  }
  Range range{
      {session, lock.owner()}, lock.flock(), lock.type() == F_WRLCK, lock.start(), lock.end(), lock.pid()};
  if (range.flock) {
    range.start = 0;
    range.end = kToTheEnd;
  }
  range.end = std::min(range.end, kToTheEnd);
  if (range.start > range.end) {
    return ErrnoError(EINVAL, absl::StrFormat("a lock from %d to %d", lock.start(), lock.end()));
  }
  return range;
}

const LockTable::Range* LockTable::Conflict(const File& file, const Range& range) {
  for (const Range& held : file.held) {
    bool overlaps = held.start <= range.end && range.start <= held.end;
    bool excludes = held.exclusive || range.exclusive;
    if (held.flock == range.flock && held.owner != range.owner && overlaps && excludes) return &held;
  }
  return nullptr;
}

void LockTable::Remove(File* file, const Range& range) {
  std::vector<Range> left;
  for (const Range& held : file->held) {
    bool touched = held.flock == range.flock && held.owner == range.owner && held.start <= range.end &&
                   range.start <= held.end;
    if (!touched) {
      left.push_back(held);
      continue;
    }
    if (held.start < range.start) {
      left.push_back(held);
      left.back().end = range.start - 1;
    }
    if (held.end > range.end) {
      left.push_back(held);
      left.back().start = range.end + 1;
    }
  }
  file->held = std::move(left);
}

void LockTable::Insert(File* file, const Range& range) {
  Remove(file, range);
  Range joined = range;
  std::erase_if(file->held, [&](const Range& held) {
    bool same = held.flock == range.flock && held.owner == range.owner && held.exclusive == range.exclusive;
    if (!same || (held.end + 1 != joined.start && joined.end + 1 != held.start)) return false;
    joined.start = std::min(joined.start, held.start);
    joined.end = std::max(joined.end, held.end);
    return true;
  });
  file->held.push_back(joined);
}

void LockTable::AddWaiter(const Fid& fid, File* file, Waiter waiter) {
  ++clients_[waiter.range.owner.session].waiting;
  if (!waiter.range.flock) waits_[waiter.range.owner].insert(fid);
  file->waiting.push_back(std::move(waiter));
}

void LockTable::ForgetWaiter(const Fid& fid, const Waiter& waiter) {
  --clients_[waiter.range.owner.session].waiting;
  if (waiter.range.flock) return;
  auto owner = waits_.find(waiter.range.owner);
  owner->second.erase(owner->second.find(fid));
  if (owner->second.empty()) waits_.erase(owner);
}

template <typename Condition>
void LockTable::EndWaits(const Fid& fid, File* file, const Status& status, std::vector<Answer>* answers,
                         Condition condition) {
  std::erase_if(file->waiting, [&](const Waiter& waiter) {
    if (!condition(waiter)) return false;
    ForgetWaiter(fid, waiter);
    answers->push_back({waiter.answer, status});
    return true;
  });
}

// Whether its owner has some of this range exclusively and is to have it shared.
bool LockTable::Weakens(const File& file, const Range& range) {
  return std::any_of(file.held.begin(), file.held.end(), [&](const Range& held) {
    const bool same = held.flock == range.flock && held.owner == range.owner;
    const bool overlaps = held.start <= range.end && range.start <= held.end;
    return same && overlaps && held.exclusive && !range.exclusive;
  });
}

// In the order of their coming; one that must go on waiting does not hold up the others. An owner that gets a
// lock in place of a stronger one of his own lets in those who were looked at before him, too.
void LockTable::Wake(const Fid& fid, File* file, std::vector<Answer>* answers) {
  for (bool weakened = true; weakened;) {
    weakened = false;
    EndWaits(fid, file, OkStatus(), answers, [&](const Waiter& waiter) {
      if (Conflict(*file, waiter.range) != nullptr) return false;
      weakened = weakened || Weakens(*file, waiter.range);
      Insert(file, waiter.range);
      return true;
    });
  }
}

void LockTable::Settle(const Fid& fid, SessionId session) {
  auto client = clients_.find(session);
  auto file = files_.find(fid);
  auto is_its = [session](const auto& range) { return range.owner.session == session; };
  const bool has =
      file != files_.end() && (std::any_of(file->second.held.begin(), file->second.held.end(), is_its) ||
                               std::any_of(file->second.waiting.begin(), file->second.waiting.end(),
                                           [&](const Waiter& waiter) { return is_its(waiter.range); }));
  if (client != clients_.end()) {
    if (has)
      client->second.files.insert(fid);
    else
      client->second.files.erase(fid);
    if (client->second.files.empty()) clients_.erase(client);
  } else if (has) {
    clients_[session].files.insert(fid);
  }
  if (file != files_.end() && file->second.empty()) files_.erase(file);
}

void LockTable::Deliver(std::vector<Answer> answers) {
  for (Answer& answer : answers) answer.waiter.Set(std::move(answer.status));
}

// Whether somebody who is in the way waits, directly or through others, for this owner. POSIX locks only.
// Looks at what those wait for who are in the way, not at everybody who waits.
bool LockTable::ClosesCircle(const File& file, const Range& range) const {
  std::vector<Owner> to_visit;
  auto add_holders = [&to_visit](const File& at, const Range& wanted) {
    for (const Range& held : at.held) {
      bool overlaps = held.start <= wanted.end && wanted.start <= held.end;
      bool excludes = held.exclusive || wanted.exclusive;
      if (!held.flock && held.owner != wanted.owner && overlaps && excludes) to_visit.push_back(held.owner);
    }
  };
  add_holders(file, range);
  std::set<Owner> seen;
  while (!to_visit.empty()) {
    Owner owner = to_visit.back();
    to_visit.pop_back();
    if (owner == range.owner) return true;
    auto waits = waits_.find(owner);
    if (waits == waits_.end() || !seen.insert(owner).second) continue;
    for (auto fid = waits->second.begin(); fid != waits->second.end();
         fid = waits->second.upper_bound(*fid)) {
      const File& at = files_.at(*fid);
      for (const Waiter& waiter : at.waiting) {
        if (waiter.range.owner == owner && !waiter.range.flock) add_holders(at, waiter.range);
      }
    }
  }
  return false;
}

LockTable::Outcome LockTable::Set(SessionId session, const proto::LockRange& lock, bool wait,
                                  uint64_t wait_id) {
  auto range = Parse(session, lock);
  if (!range.ok()) return {range.status(), {}};
  std::vector<Answer> answers;
  Outcome outcome;
  {
    std::lock_guard guard(mutex_);
    const Fid fid = FromProto(lock.fid());
    File& file = files_[fid];
    if (wait) {  // an earlier copy of the request
      EndWaits(fid, &file, WaitCancelled(), &answers, [&](const Waiter& waiter) {
        return waiter.range.owner.session == session && waiter.wait_id == wait_id;
      });
    }
    // As in Linux, an flock that changes its kind is given up first.
    if (lock.type() == F_UNLCK || range->flock) Remove(&file, *range);
    auto client = clients_.find(session);
    if (lock.type() != F_UNLCK && Conflict(file, *range) == nullptr) {
      Insert(&file, *range);
    } else if (lock.type() != F_UNLCK && !wait) {
      outcome.status = ErrnoError(EAGAIN, absl::StrFormat("%s is locked by another owner", fid.ToString()));
    } else if (lock.type() != F_UNLCK && client != clients_.end() && client->second.waiting >= kMaxWaiting) {
      outcome.status = ErrnoError(
          ENOLCK,
          absl::StrFormat("session %d waits for %d locks already, as many as it may", session, kMaxWaiting));
    } else if (lock.type() != F_UNLCK && !range->flock && ClosesCircle(file, *range)) {
      outcome.status =
          ErrnoError(EDEADLK, absl::StrFormat("waiting for %s would be a deadlock", fid.ToString()));
    } else if (lock.type() != F_UNLCK) {
      AddWaiter(fid, &file, {*range, wait_id, {}});
      outcome.pending = file.waiting.back().answer;
    }
    // Only what is given up, or held in a weaker way, lets others in.
    if (!outcome.pending.has_value() || range->flock) Wake(fid, &file, &answers);
    Settle(fid, session);
  }
  Deliver(std::move(answers));
  return outcome;
}

bool LockTable::Cancel(SessionId session, uint64_t wait_id) {
  std::vector<Answer> answers;
  {
    std::lock_guard guard(mutex_);
    for (const Fid& fid : FilesOf(session)) {
      EndWaits(fid, &files_.at(fid), WaitCancelled(), &answers, [&](const Waiter& waiter) {
        return waiter.range.owner.session == session && waiter.wait_id == wait_id;
      });
      Settle(fid, session);
    }
  }
  bool found = !answers.empty();
  Deliver(std::move(answers));
  return found;
}

StatusOr<proto::LockRange> LockTable::Get(SessionId session, const proto::LockRange& lock) {
  ASSIGN_OR_RETURN(Range range, Parse(session, lock));
  std::lock_guard guard(mutex_);
  auto it = files_.find(FromProto(lock.fid()));
  const Range* held = it == files_.end() ? nullptr : Conflict(it->second, range);
  if (held == nullptr) return Nothing(lock);
  proto::LockRange found;
  *found.mutable_fid() = lock.fid();
  found.set_owner(held->owner.id);
  found.set_flock(held->flock);
  found.set_type(held->exclusive ? F_WRLCK : F_RDLCK);
  found.set_start(held->start);
  found.set_end(held->end);
  found.set_pid(held->pid);
  return found;
}

Status LockTable::Reclaim(SessionId session, const proto::LockRange& lock) {
  if (lock.type() == F_UNLCK) return OkStatus();
  return Set(session, lock, /*wait=*/false, 0).status;
}

std::set<Fid> LockTable::FilesOf(SessionId session) const {
  auto client = clients_.find(session);
  return client == clients_.end() ? std::set<Fid>() : client->second.files;
}

void LockTable::DropSession(SessionId session) {
  std::vector<Answer> answers;
  {
    std::lock_guard guard(mutex_);
    for (const Fid& fid : FilesOf(session)) {
      File& file = files_.at(fid);
      std::erase_if(file.held, [&](const Range& held) { return held.owner.session == session; });
      EndWaits(fid, &file, ErrnoError(ESTALE, "the session has ended"), &answers,
               [&](const Waiter& waiter) { return waiter.range.owner.session == session; });
      Wake(fid, &file, &answers);
      Settle(fid, session);
    }
  }
  Deliver(std::move(answers));
}

std::map<SessionId, uint64_t> LockTable::CountBySession() const {
  std::lock_guard guard(mutex_);
  std::map<SessionId, uint64_t> counts;
  for (const auto& [fid, file] : files_) {
    for (const Range& held : file.held) ++counts[held.owner.session];
  }
  return counts;
}

}  // namespace nacre::mds
