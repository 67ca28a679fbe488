// Checks of what must hold of transactions, whatever happens: every one that was told to have succeeded is
// there, none twice, and none that was told not to have succeeded.
//
// Several writers append tokens to the value of one key, each by a transaction on the revision that it has
// read. Not thread-safe: everything on one executor of one thread.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <string>

#include "server/coordination/coordinator.h"

namespace nacre::coordination {

class History {
 public:
  explicit History(std::string key) : key_(std::move(key)) {}

  // Appends tokens that begin with `name` until `enough` says so.
  Task<void> Write(Coordinator* coordinator, Clock* clock, std::string name, Duration timeout,
                   std::function<bool()> enough) {
    for (int number = 0; !enough(); ++number) {
      StatusOr<Entry> entry = co_await coordinator->Get(key_, timeout);
      if (!entry.ok()) {
        Refused(entry.status());
        co_await clock->Sleep(10ms);
        continue;
      }
      const std::string token = absl::StrCat(name, ".", number, " ");
      Transaction transaction;
      transaction.conditions.push_back({key_, entry->mod_revision});
      transaction.puts.push_back({key_, entry->value + token});
      const StatusOr<Outcome> outcome = co_await coordinator->Transact(std::move(transaction), timeout);
      if (outcome.ok()) {
        told_[token] = outcome->succeeded;
        continue;
      }
      Refused(outcome.status());
      ++unknown_;
      co_await clock->Sleep(10ms);
    }
  }

  // Of the tokens in this value how many were told to nobody.
  int Untold(const std::string& value) const {
    int untold = 0;
    for (const auto& [token, times] : Tokens(value)) untold += told_.contains(token) ? 0 : 1;
    return untold;
  }

  // Returns what is wrong with this value of the key; empty: nothing.
  std::string Judge(const std::string& value) const {
    const std::map<std::string, int> found = Tokens(value);
    std::string wrong = wrong_;
    for (const auto& [token, times] : found) {
      if (times > 1) absl::StrAppend(&wrong, token, "is there ", times, " times; ");
    }
    for (const auto& [token, succeeded] : told_) {
      if (succeeded && !found.contains(token)) absl::StrAppend(&wrong, token, "is lost; ");
      if (!succeeded && found.contains(token)) absl::StrAppend(&wrong, token, "is there and was denied; ");
    }
    return wrong;
  }

  int successes() const {
    return static_cast<int>(
        std::count_if(told_.begin(), told_.end(), [](const auto& one) { return one.second; }));
  }
  int unknown() const { return unknown_; }
  const std::string& key() const { return key_; }

 private:
  static std::map<std::string, int> Tokens(const std::string& value) {
    std::map<std::string, int> found;
    for (size_t at = 0, end = 0; at < value.size(); at = end + 1) {
      end = value.find(' ', at);
      ++found[value.substr(at, end + 1 - at)];
    }
    return found;
  }

  void Refused(const Status& status) {
    if (!absl::IsUnavailable(status)) absl::StrAppend(&wrong_, "not UNAVAILABLE: ", status.ToString(), "; ");
  }

  const std::string key_;
  std::map<std::string, bool> told_;  // token -> succeeded
  std::string wrong_;
  int unknown_ = 0;
};

}  // namespace nacre::coordination
