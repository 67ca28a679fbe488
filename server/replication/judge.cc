#include "server/replication/judge.h"

#include "proto/copies.pb.h"
#include "server/replication/stored.h"

namespace nacre::replication {
namespace {

constexpr Duration kTimeout = 2s;

std::string Encode(const MdtRecord& record) {
  proto::MdtRecord out;
  out.set_version(kStoredVersion);
  out.set_filesystem(record.filesystem);
  out.set_epoch(record.epoch);
  out.set_primary(record.primary);
  for (const std::string& name : record.in_sync) out.add_in_sync(name);
  out.set_losses(record.losses);
  return out.SerializeAsString();
}

StatusOr<Judge::Known> Parse(const coordination::Entry& entry) {
  Judge::Known known;
  if (!entry.exists()) return known;
  ASSIGN_OR_RETURN(auto stored, ParseStored<proto::MdtRecord>(entry.value, "record of the MDT in etcd"));
  known.revision = entry.mod_revision;
  known.record.filesystem = stored.filesystem();
  known.record.epoch = stored.epoch();
  known.record.primary = stored.primary();
  known.record.in_sync.insert(stored.in_sync().begin(), stored.in_sync().end());
  known.record.losses = stored.losses();
  return known;
}

}  // namespace

Task<StatusOr<Judge::Known>> Judge::Read() {
  CO_ASSIGN_OR_RETURN(coordination::Entry entry, co_await coordinator_.Get(prefix_ + "mdt", kTimeout));
  co_return Parse(entry);
}

Task<StatusOr<Judge::Known>> Judge::Change(Known from, MdtRecord to) {
  coordination::Transaction transaction;
  transaction.conditions.push_back({prefix_ + "mdt", from.revision});
  transaction.puts.push_back({prefix_ + "mdt", Encode(to)});
  CO_ASSIGN_OR_RETURN(coordination::Outcome outcome,
                      co_await coordinator_.Transact(std::move(transaction), kTimeout));
  if (outcome.succeeded) co_return Known{std::move(to), outcome.revision};
  co_return Parse(outcome.present.front());
}

Task<Status> Judge::Announce(std::string name, std::string address) {
  const std::string key = prefix_ + "members/" + name;
  CO_ASSIGN_OR_RETURN(coordination::Entry entry, co_await coordinator_.Get(key, kTimeout));
  if (entry.exists() && entry.value == address) co_return OkStatus();
  coordination::Transaction transaction;
  transaction.conditions.push_back({key, entry.mod_revision});
  transaction.puts.push_back({key, std::move(address)});
  CO_ASSIGN_OR_RETURN(coordination::Outcome outcome,
                      co_await coordinator_.Transact(std::move(transaction), kTimeout));
  if (outcome.succeeded) co_return OkStatus();
  co_return absl::UnavailableError("another member of the same name has just said where it is");
}

Task<StatusOr<std::map<std::string, std::string>>> Judge::Addresses() {
  const std::string prefix = prefix_ + "members/";
  CO_ASSIGN_OR_RETURN(coordination::Listing listing, co_await coordinator_.List(prefix, kTimeout));
  std::map<std::string, std::string> addresses;
  for (const coordination::Entry& entry : listing.entries) {
    addresses[entry.key.substr(prefix.size())] = entry.value;
  }
  co_return addresses;
}

}  // namespace nacre::replication
