#include "server/replication/overlay.h"

#include <algorithm>
#include <cerrno>

namespace nacre::replication {

void Overlay::Add(uint64_t change, const std::vector<KvBatch::Op>& ops) {
  std::lock_guard lock(mutex_);
  Change& added = changes_.emplace_back();
  added.number = change;
  added.values.reserve(ops.size());
  for (const KvBatch::Op& op : ops) {
    const auto it = values_.try_emplace(op.key).first;
    if (it->second.change != change) added.values.push_back(it);
    it->second = {change, op.value, op.erase};
  }
}

void Overlay::Stored(uint64_t change) {
  std::lock_guard lock(mutex_);
  stored_ = std::max(stored_, change);  // those of the next group may have been told first
  Forget();
}

// Drops the values of changes that the store has and no reading needs. A value that a later change has set
// again is dropped with that change.
void Overlay::Forget() {
  const uint64_t upto = readings_.empty() ? stored_ : std::min(stored_, *readings_.begin());
  for (; !changes_.empty() && changes_.front().number <= upto; changes_.pop_front()) {
    const Change& change = changes_.front();
    for (const Values::iterator it : change.values) {
      if (it->second.change == change.number) values_.erase(it);
    }
  }
}

size_t Overlay::size() const {
  std::lock_guard lock(mutex_);
  return values_.size();
}

Overlay::Reading::Reading(Overlay& overlay) : overlay_(overlay) {
  std::lock_guard lock(overlay_.mutex_);
  begun_ = overlay_.readings_.insert(overlay_.stored_);
}

Overlay::Reading::~Reading() {
  std::lock_guard lock(overlay_.mutex_);
  overlay_.readings_.erase(begun_);
  overlay_.Forget();
}

// One key needs no Reading: what is not here is in the store before it is gone from here.
StatusOr<std::string> Overlay::Get(std::string_view key) {
  {
    std::lock_guard lock(mutex_);
    const auto it = values_.find(key);
    if (it != values_.end() && it->second.erase) return ErrnoError(ENOENT, "no such key");
    if (it != values_.end()) return it->second.value;
  }
  return store_.Get(key);
}

Overlay::Values::iterator Overlay::EndOf(std::string_view to) {
  return to.empty() ? values_.end() : values_.lower_bound(to);
}

// `stored` is all that the store has in this range.
std::vector<KvEntry> Overlay::Merge(const std::vector<KvEntry>& stored, std::string_view from,
                                    std::string_view to, size_t limit) {
  std::vector<KvEntry> merged;
  auto here = values_.lower_bound(from);
  const auto end = EndOf(to);
  auto there = stored.begin();
  while (merged.size() < limit && (here != end || there != stored.end())) {
    if (here == end || (there != stored.end() && there->key < here->first)) {
      merged.push_back(*there++);
      continue;
    }
    if (there != stored.end() && there->key == here->first) ++there;
    if (!here->second.erase) merged.push_back({here->first, here->second.value});
    ++here;
  }
  return merged;
}

// The store is looked at until it has shown enough, whatever of that has been erased here; then both are put
// together as they are at that moment.
StatusOr<std::vector<KvEntry>> Overlay::Scan(std::string_view from, std::string_view to, size_t limit) {
  if (!to.empty() && from >= to) return std::vector<KvEntry>{};
  const Reading reading(*this);
  std::vector<KvEntry> stored;
  std::string next(from);
  while (true) {
    ASSIGN_OR_RETURN(std::vector<KvEntry> more, store_.Scan(next, to, limit));
    const bool all = more.size() < limit;
    if (!all) next = more.back().key + '\0';
    std::move(more.begin(), more.end(), std::back_inserter(stored));
    std::lock_guard lock(mutex_);
    if (all && values_.empty()) return stored;
    std::vector<KvEntry> merged = Merge(stored, from, all ? to : next, limit);
    if (all || merged.size() >= limit) return merged;
  }
}

StatusOr<KvEntry> Overlay::Last(std::string_view from, std::string_view to) {
  const Reading reading(*this);
  for (std::string end(to);;) {
    StatusOr<KvEntry> last = store_.Last(from, end);
    if (!last.ok() && !absl::IsNotFound(last.status())) return last;
    std::lock_guard lock(mutex_);
    if (last.ok()) {
      const auto it = values_.find(last->key);
      if (it != values_.end() && it->second.erase) {
        end = last->key;
        continue;
      }
      if (it != values_.end()) last->value = it->second.value;
    }
    for (auto it = EndOf(to); it != values_.begin();) {
      --it;
      if (it->first < from || (last.ok() && it->first <= last->key)) break;
      if (!it->second.erase) return KvEntry{it->first, it->second.value};
    }
    return last;
  }
}

}  // namespace nacre::replication
