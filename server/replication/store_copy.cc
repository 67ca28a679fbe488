#include "server/replication/store_copy.h"

#include <absl/strings/match.h>
#include <absl/strings/str_format.h>

#include <algorithm>

#include "common/bytes.h"
#include "server/replication/stored.h"

namespace nacre::replication {
namespace {

constexpr size_t kPartBytes = 512 << 10;
constexpr size_t kScanned = 1000;  // entries

std::string Encode(Position position) {
  std::string out;
  PutLittle(&out, position.epoch);
  PutLittle(&out, position.sequence);
  return out;
}

StatusOr<Position> ParsePosition(std::string_view data) {
  ByteReader reader(data);
  Position position;
  position.epoch = reader.Little<uint64_t>();
  position.sequence = reader.Little<uint64_t>();
  if (reader.ok() && reader.rest().empty()) return position;
  return absl::DataLossError(absl::StrFormat("damaged position of the MDT's copy, %d bytes", data.size()));
}

// The key's value; empty: there is none.
StatusOr<std::string> GetIfThere(KvStore& store, std::string_view key) {
  StatusOr<std::string> value = store.Get(key);
  if (absl::IsNotFound(value.status())) return std::string();
  return value;
}

std::string Behind(std::string key) {
  key.push_back('\0');
  return key;
}

void AddEntry(const KvEntry& entry, proto::InstallPart* part) {
  proto::StoreChange* change = part->add_entries();
  change->set_key(entry.key);
  change->set_value(entry.value);
}

}  // namespace

Task<StatusOr<std::unique_ptr<StoreCopy>>> StoreCopy::Open(KvStore* store, std::string boot,
                                                           uint64_t log_bytes) {
  std::unique_ptr<StoreCopy> copy(new StoreCopy(*store, std::move(boot), log_bytes));
  CO_RETURN_IF_ERROR(copy->Load());
  proto::StoreRecord own;
  {
    std::lock_guard lock(copy->mutex_);
    own = copy->own_;
    copy->may_lack_ = !own.clean() && !own.boot().empty() && own.boot() != copy->boot_;
  }
  // Before anything is applied that a loss of power could take.
  if (own.clean()) CO_RETURN_IF_ERROR(co_await copy->NoteWhole(own.filesystem()));
  co_return copy;
}

Task<Status> StoreCopy::MarkBlank(KvStore* store) {
  CO_ASSIGN_OR_RETURN(std::vector<KvEntry> first, store->Scan({}, {}, 1));
  if (!first.empty()) co_return absl::FailedPreconditionError("the MDT's directory is not empty");
  StoreCopy copy(*store, "", 0);
  proto::StoreRecord record;
  record.set_version(kStoredVersion);
  record.set_blank(true);
  co_return co_await copy.StoreOwn(std::move(record));
}

Status StoreCopy::Load() {
  ASSIGN_OR_RETURN(std::string own, GetIfThere(store_, kStoreKey));
  ASSIGN_OR_RETURN(std::string position, GetIfThere(store_, kPositionKey));
  ASSIGN_OR_RETURN(std::string history, GetIfThere(store_, kHistoryKey));
  std::lock_guard lock(mutex_);
  own_.Clear();
  own_.set_version(kStoredVersion);
  position_ = {};
  history_ = {};
  if (!own.empty()) {
    ASSIGN_OR_RETURN(own_, ParseStored<proto::StoreRecord>(own, "record of the MDT's copy"));
  }
  if (own_.installing() || position.empty()) return OkStatus();
  ASSIGN_OR_RETURN(position_, ParsePosition(position));
  ASSIGN_OR_RETURN(history_, History::Parse(history));
  return OkStatus();
}

Position StoreCopy::position() const {
  std::lock_guard lock(mutex_);
  return position_;
}

History StoreCopy::history() const {
  std::lock_guard lock(mutex_);
  return history_;
}

std::string StoreCopy::filesystem() const {
  std::lock_guard lock(mutex_);
  return own_.filesystem();
}

StatusOr<bool> StoreCopy::Empty() const {
  ASSIGN_OR_RETURN(std::vector<KvEntry> first, store_.Scan({}, kOwnPrefix, 1));
  return first.empty();
}

bool StoreCopy::made_blank() const {
  std::lock_guard lock(mutex_);
  return own_.blank();
}

bool StoreCopy::installing() const {
  std::lock_guard lock(mutex_);
  return own_.installing();
}

bool StoreCopy::may_lack() const {
  std::lock_guard lock(mutex_);
  return may_lack_;
}

Task<Status> StoreCopy::Apply(GroupPtr group) {
  KvBatch batch;
  batch.SetAdmitted();  // the primary has asked for room; who has none now is out of the set
  for (const KvBatch::Op& op : group->ops) {
    if (op.erase) {
      batch.Erase(op.key);
    } else {
      batch.Put(op.key, op.value);
    }
  }
  batch.Put(kPositionKey, Encode(group->position));
  const bool begins = !group->ops.empty() && group->ops.back().key == kHistoryKey;
  CO_RETURN_IF_ERROR(co_await store_.Commit(std::move(batch)));
  History history;
  if (begins) {
    CO_ASSIGN_OR_RETURN(history, History::Parse(group->ops.back().value));
  }
  log_.Add(group);  // first: whoever knows of the position asks for what has led to it
  {
    std::lock_guard lock(mutex_);
    position_ = group->position;
    if (begins) history_ = std::move(history);
  }
  co_return OkStatus();
}

GroupPtr StoreCopy::FirstOf(uint64_t epoch) const {
  std::lock_guard lock(mutex_);
  auto group = std::make_shared<Group>();
  group->previous = position_;
  group->position = {epoch, position_.sequence + 1};
  History history = history_;
  history.Begin(group->position);
  group->ops.push_back({kHistoryKey, history.Encode(), false});
  group->bytes = group->ops.back().value.size();
  return group;
}

// On stable storage: else a loss of power would take the record along, and what it says would be believed of
// what is left.
Task<Status> StoreCopy::StoreOwn(proto::StoreRecord record) {
  KvBatch batch;
  batch.UseReserve();
  batch.Put(kStoreKey, record.SerializeAsString());
  CO_RETURN_IF_ERROR(co_await store_.Commit(std::move(batch)));
  CO_RETURN_IF_ERROR(co_await store_.Sync());
  std::lock_guard lock(mutex_);
  own_ = std::move(record);
  co_return OkStatus();
}

proto::StoreRecord StoreCopy::own() const {
  std::lock_guard lock(mutex_);
  return own_;
}

Task<Status> StoreCopy::NoteFilesystem(std::string filesystem) {
  proto::StoreRecord record = own();
  record.set_filesystem(std::move(filesystem));
  co_return co_await StoreOwn(std::move(record));
}

Task<Status> StoreCopy::NoteWhole(std::string filesystem) {
  proto::StoreRecord record = own();
  record.set_filesystem(std::move(filesystem));
  record.set_boot(boot_);
  record.set_clean(false);
  record.set_blank(false);
  CO_RETURN_IF_ERROR(co_await StoreOwn(std::move(record)));
  std::lock_guard lock(mutex_);
  may_lack_ = false;
  co_return OkStatus();
}

Task<Status> StoreCopy::EndClean() {
  proto::StoreRecord record = own();
  if (may_lack() || record.filesystem().empty()) co_return OkStatus();
  CO_RETURN_IF_ERROR(co_await store_.Sync());
  record.set_clean(true);
  co_return co_await StoreOwn(std::move(record));
}

// --- the whole content ---

Status StoreCopy::CheckPart(const proto::InstallPart& part) const {
  const bool expected = part.first() ? Position::Of(part.instead_of()) == position_
                                     : own_.installing() && part.copy() == installing_ &&
                                           (part.from() == installed_ || part.from() == part_);
  if (expected) return OkStatus();
  return absl::FailedPreconditionError("a part of a copy that does not follow what is here");
}

Task<Status> StoreCopy::Install(proto::InstallPart part, std::string filesystem) {
  proto::StoreRecord record;
  {
    std::lock_guard lock(mutex_);
    CO_RETURN_IF_ERROR(CheckPart(part));
    record = own_;
    position_ = {};
    installing_ = part.copy();
    part_ = part.from();
  }
  if (part.first()) {
    log_.Clear();
    record.set_installing(true);
    record.set_clean(false);
    CO_RETURN_IF_ERROR(co_await StoreOwn(std::move(record)));
  }
  const bool last = part.last();
  const std::string from = part.from(), to = part.to();
  CO_RETURN_IF_ERROR(co_await Replace(from, to, std::move(part)));
  if (last) co_return co_await FinishInstall(std::move(filesystem));
  std::lock_guard lock(mutex_);
  installed_ = to;
  co_return OkStatus();
}

// Writes only what differs: a store that comes back after hours has most of it already.
Task<Status> StoreCopy::Replace(std::string from, std::string to, proto::InstallPart part) {
  int next = 0;
  while (true) {
    CO_ASSIGN_OR_RETURN(std::vector<KvEntry> present, store_.Scan(from, to, kScanned));
    const bool all = present.size() < kScanned;
    const std::string end = all ? to : Behind(present.back().key);
    KvBatch batch;
    batch.UseReserve();
    auto old = present.begin();
    for (; next < part.entries_size() && (end.empty() || part.entries(next).key() < end); ++next) {
      proto::StoreChange& entry = *part.mutable_entries(next);
      for (; old != present.end() && old->key < entry.key(); ++old) {
        if (old->key != kStoreKey) batch.Erase(old->key);
      }
      const bool there = old != present.end() && old->key == entry.key();
      if (!there || old->value != entry.value()) {
        batch.Put(std::move(*entry.mutable_key()), std::move(*entry.mutable_value()));
      }
      if (there) ++old;
    }
    for (; old != present.end(); ++old) {
      if (old->key != kStoreKey) batch.Erase(old->key);
    }
    if (!batch.empty()) CO_RETURN_IF_ERROR(co_await store_.Commit(std::move(batch)));
    if (all) co_return OkStatus();
    from = end;
  }
}

Task<Status> StoreCopy::FinishInstall(std::string filesystem) {
  CO_RETURN_IF_ERROR(co_await store_.Sync());
  proto::StoreRecord record;
  {
    std::lock_guard lock(mutex_);
    record = own_;
    installed_.clear();
    part_.clear();
  }
  record.set_installing(false);
  record.set_blank(false);
  record.set_filesystem(std::move(filesystem));
  CO_RETURN_IF_ERROR(co_await StoreOwn(std::move(record)));
  co_return Load();
}

StatusOr<std::unique_ptr<StoreParts>> StoreParts::Take(KvStore& store, uint64_t copy, Position instead_of) {
  ASSIGN_OR_RETURN(std::unique_ptr<KvSnapshot> snapshot, store.Snapshot());
  std::unique_ptr<StoreParts> parts(new StoreParts(std::move(snapshot), copy, instead_of));
  ASSIGN_OR_RETURN(std::vector<KvEntry> own, parts->snapshot_->Read(kPositionKey, 1));
  if (own.empty() || own.front().key != kPositionKey) {
    return absl::InternalError("a copy is taken of a store without a position");
  }
  ASSIGN_OR_RETURN(parts->position_, ParsePosition(own.front().value));
  return parts;
}

StatusOr<proto::InstallPart> StoreParts::Next() {
  ASSIGN_OR_RETURN(std::vector<KvEntry> entries, snapshot_->Read(next_, kPartBytes));
  proto::InstallPart part;
  part.set_copy(copy_);
  part.set_first(first_);
  if (first_) *part.mutable_instead_of() = instead_of_.Message();
  part.set_from(next_);
  for (const KvEntry& entry : entries) {
    if (entry.key != kStoreKey) AddEntry(entry, &part);
  }
  first_ = false;
  if (entries.empty()) {
    part.set_last(true);
    *part.mutable_position() = position_.Message();
  } else {
    next_ = Behind(entries.back().key);
    part.set_to(next_);
  }
  return part;
}

}  // namespace nacre::replication
