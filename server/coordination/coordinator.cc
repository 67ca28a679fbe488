#include "server/coordination/coordinator.h"

#include <absl/container/flat_hash_set.h>
#include <absl/strings/escaping.h>
#include <absl/strings/str_format.h>

#include <cerrno>

namespace nacre::coordination {
namespace {

// Adds the key to those that were named in this part; an error if it is there already.
Status AddOnce(absl::flat_hash_set<std::string>* keys, const std::string& key, const char* what) {
  RETURN_IF_ERROR(CheckKey(key));
  if (keys->insert(key).second) return OkStatus();
  return ErrnoError(EINVAL, absl::StrFormat("transaction: key '%s' is %s twice", ShownKey(key), what));
}

}  // namespace

std::string ShownKey(const std::string& key) { return absl::CHexEscape(key.substr(0, 100)); }

Status CheckKey(const std::string& key) {
  if (key.empty()) return ErrnoError(EINVAL, "a key of the coordinator is empty");
  return OkStatus();
}

Status CheckTransaction(const Transaction& transaction) {
  if (transaction.puts.empty() && transaction.erases.empty()) {
    return ErrnoError(EINVAL, "transaction: it puts and erases nothing");
  }
  absl::flat_hash_set<std::string> compared, changed;
  size_t bytes = 0;
  for (const Condition& condition : transaction.conditions) {
    RETURN_IF_ERROR(AddOnce(&compared, condition.key, "compared"));
    bytes += condition.key.size();
    if (condition.mod_revision >= 0) continue;
    return ErrnoError(EINVAL, absl::StrFormat("transaction: key '%s' is compared with revision %d",
                                              ShownKey(condition.key), condition.mod_revision));
  }
  for (const Put& put : transaction.puts) {
    RETURN_IF_ERROR(AddOnce(&changed, put.key, "changed"));
    bytes += put.key.size() + put.value.size();
  }
  for (const std::string& key : transaction.erases) {
    RETURN_IF_ERROR(AddOnce(&changed, key, "changed"));
    bytes += key.size();
  }
  const size_t keys = NamedKeys(transaction).size();
  if (keys > kMaxTransactionKeys) {
    return ErrnoError(
        EINVAL, absl::StrFormat("transaction: it names %d keys, more than %d", keys, kMaxTransactionKeys));
  }
  if (bytes > kMaxTransactionBytes) {
    return ErrnoError(EINVAL, absl::StrFormat("transaction: keys and values of %d bytes, more than %d", bytes,
                                              kMaxTransactionBytes));
  }
  return OkStatus();
}

std::vector<std::string> NamedKeys(const Transaction& transaction) {
  std::vector<std::string> keys;
  absl::flat_hash_set<std::string> seen;
  auto add = [&](const std::string& key) {
    if (seen.insert(key).second) keys.push_back(key);
  };
  for (const Condition& condition : transaction.conditions) add(condition.key);
  for (const Put& put : transaction.puts) add(put.key);
  for (const std::string& key : transaction.erases) add(key);
  return keys;
}

Status Unavailable(std::string_view what, Duration waited, std::string_view why) {
  return ErrnoError(ENOTCONN, absl::StrFormat("%s: not known after %.1f s: %s", what,
                                              std::chrono::duration<double>(waited).count(), why));
}

}  // namespace nacre::coordination
