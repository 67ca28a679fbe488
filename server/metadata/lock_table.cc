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

// In the order of their coming; one that must go on waiting does not hold up the others.
void LockTable::Wake(File* file, std::vector<Answer>* answers) {
  for (auto it = file->waiting.begin(); it != file->waiting.end();) {
    if (Conflict(*file, it->range) != nullptr) {
      ++it;
      continue;
    }
    Insert(file, it->range);
    answers->push_back({it->answer, OkStatus()});
    it = file->waiting.erase(it);
  }
}

void LockTable::Deliver(std::vector<Answer> answers) {
  for (Answer& answer : answers) answer.waiter.Set(std::move(answer.status));
}

// Whether somebody who is in the way waits, directly or through others, for this owner. POSIX locks only.
bool LockTable::ClosesCircle(const File& file, const Range& range) const {
  std::map<Owner, std::set<Owner>> waits_for;
  auto add = [&](const File& at, const Range& wanted) {
    for (const Range& held : at.held) {
      bool overlaps = held.start <= wanted.end && wanted.start <= held.end;
      if (!held.flock && held.owner != wanted.owner && overlaps && (held.exclusive || wanted.exclusive)) {
        waits_for[wanted.owner].insert(held.owner);
      }
    }
  };
  add(file, range);
  for (const auto& [fid, other] : files_) {
    for (const Waiter& waiter : other.waiting) {
      if (!waiter.range.flock) add(other, waiter.range);
    }
  }
  std::set<Owner> seen;
  std::vector<Owner> to_visit(waits_for[range.owner].begin(), waits_for[range.owner].end());
  while (!to_visit.empty()) {
    Owner owner = to_visit.back();
    to_visit.pop_back();
    if (owner == range.owner) return true;
    if (!seen.insert(owner).second) continue;
    auto it = waits_for.find(owner);
    if (it != waits_for.end()) to_visit.insert(to_visit.end(), it->second.begin(), it->second.end());
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
    if (wait) CancelLocked(&file, session, wait_id, &answers);  // an earlier copy of the request
    // As in Linux, an flock that changes its kind is given up first.
    if (lock.type() == F_UNLCK || range->flock) Remove(&file, *range);
    if (lock.type() != F_UNLCK && Conflict(file, *range) == nullptr) {
      Insert(&file, *range);
    } else if (lock.type() != F_UNLCK && !wait) {
      outcome.status = ErrnoError(EAGAIN, absl::StrFormat("%s is locked by another owner", fid.ToString()));
    } else if (lock.type() != F_UNLCK && !range->flock && ClosesCircle(file, *range)) {
      outcome.status =
          ErrnoError(EDEADLK, absl::StrFormat("waiting for %s would be a deadlock", fid.ToString()));
    } else if (lock.type() != F_UNLCK) {
      file.waiting.push_back({*range, wait_id, {}});
      outcome.pending = file.waiting.back().answer;
    }
    Wake(&file, &answers);
    if (file.empty()) files_.erase(fid);
  }
  Deliver(std::move(answers));
  return outcome;
}

void LockTable::CancelLocked(File* file, SessionId session, uint64_t wait_id, std::vector<Answer>* answers) {
  std::erase_if(file->waiting, [&](const Waiter& waiter) {
    if (waiter.range.owner.session != session || waiter.wait_id != wait_id) return false;
    answers->push_back({waiter.answer, ErrnoError(EINTR, "the wait for a lock was cancelled")});
    return true;
  });
}

bool LockTable::Cancel(SessionId session, uint64_t wait_id) {
  std::vector<Answer> answers;
  {
    std::lock_guard guard(mutex_);
    for (auto it = files_.begin(); it != files_.end();) {
      CancelLocked(&it->second, session, wait_id, &answers);
      if (it->second.empty())
        files_.erase(it++);
      else
        ++it;
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

void LockTable::DropSession(SessionId session) {
  std::vector<Answer> answers;
  {
    std::lock_guard guard(mutex_);
    for (auto it = files_.begin(); it != files_.end();) {
      File& file = it->second;
      std::erase_if(file.held, [&](const Range& held) { return held.owner.session == session; });
      std::erase_if(file.waiting, [&](const Waiter& waiter) {
        if (waiter.range.owner.session != session) return false;
        answers.push_back({waiter.answer, ErrnoError(ESTALE, "the session has ended")});
        return true;
      });
      Wake(&file, &answers);
      if (file.empty())
        files_.erase(it++);
      else
        ++it;
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
