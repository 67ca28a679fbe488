// The primary's view of the data for its readers: its store, and over it the changes that are not in the
// store yet because not all other members have them (pipeline.h).
//
// A change is visible from Add on. It stays here until the store has it and every read that began before that
// has ended, so that each read is of one state: one that looks at the store first and here after that misses
// nothing.
//
// Thread-safe. Errors are those of the store.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "server/kv/kv_store.h"

namespace nacre::replication {

class Overlay {
 public:
  // `store` outlives this.
  explicit Overlay(KvStore& store) : store_(store) {}

  // Changes are numbered in their order.
  void Add(uint64_t change, const std::vector<KvBatch::Op>& ops);
  // The store has everything up to this change.
  void Stored(uint64_t change);

  // As those of a KvStore.
  StatusOr<std::string> Get(std::string_view key);
  StatusOr<std::vector<KvEntry>> Scan(std::string_view from, std::string_view to, size_t limit);
  StatusOr<KvEntry> Last(std::string_view from, std::string_view to);

  size_t size() const;  // keys, for tests

 private:
  struct Value {
    uint64_t change = 0;  // the newest that has set it
    std::string value;
    bool erase = false;
  };
  using Values = std::map<std::string, Value, std::less<>>;
  struct Change {
    uint64_t number = 0;
    std::vector<Values::iterator> values;  // that it has set, each once
  };

  // While one lives, everything stays that the store did not have when it began.
  class Reading {
   public:
    explicit Reading(Overlay& overlay);
    ~Reading();
    Reading(const Reading&) = delete;
    Reading& operator=(const Reading&) = delete;

   private:
    Overlay& overlay_;
    std::multiset<uint64_t>::iterator begun_;
  };

  // With mutex_ held:
  Values::iterator EndOf(std::string_view to);
  std::vector<KvEntry> Merge(const std::vector<KvEntry>& stored, std::string_view from, std::string_view to,
                             size_t limit);
  void Forget();

  KvStore& store_;
  mutable std::mutex mutex_;
  Values values_;
  std::deque<Change> changes_;        // whose values are here
  std::multiset<uint64_t> readings_;  // what the store had when each of them began
  uint64_t stored_ = 0;
};

}  // namespace nacre::replication
