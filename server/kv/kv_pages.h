// Reads what has one prefix, a page of entries at a time: a table may be larger than memory.
//
// Each page is one consistent state of the store, the walk as a whole is none. Between two pages everything
// may change: an entry that is put or erased behind the last one that was returned is seen as it is then, one
// before it is not looked at again. So the caller may erase or rewrite what it has been given, and what
// others put before the position is not seen. A walk belongs to one thread or coroutine; it holds nothing of
// the store between two pages, so that a coroutine may wait there for as long as it likes.
//
// `Store` is a KvStore, or what has a Scan like its (mds::Tables, which refuses once it is closed). Errors
// are those of Scan, and leave the walk where it is: the next call asks for the same page again.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/kv/kv_store.h"

namespace nacre {

template <typename Store>
class KvPages {
 public:
  static constexpr size_t kEntries = 1024;

  // `store` outlives this. `entries`: how many a page has, all but the last one.
  KvPages(Store& store, std::string prefix, size_t entries = kEntries)
      : store_(store), from_(std::move(prefix)), to_(PrefixEnd(from_)), entries_(entries) {}

  // False: Next has returned the last page.
  bool more() const { return more_; }

  // May be empty.
  StatusOr<std::vector<KvEntry>> Next() {
    ASSIGN_OR_RETURN(std::vector<KvEntry> page, store_.Scan(from_, to_, entries_));
    more_ = page.size() == entries_;
    if (more_) from_ = page.back().key + '\0';
    return page;
  }

 private:
  Store& store_;
  std::string from_;
  const std::string to_;
  const size_t entries_;
  bool more_ = true;
};

// Calls `visit(KvEntry&)` for every entry with the prefix, until it returns an error, which ends the walk and
// is returned. For what waits for nothing; a coroutine that waits goes through KvPages itself.
template <typename Store, typename Visit>
Status ForEachEntry(Store& store, std::string prefix, Visit visit,
                    size_t entries = KvPages<Store>::kEntries) {
  for (KvPages<Store> pages(store, std::move(prefix), entries); pages.more();) {
    ASSIGN_OR_RETURN(std::vector<KvEntry> page, pages.Next());
    for (KvEntry& entry : page) RETURN_IF_ERROR(visit(entry));
  }
  return OkStatus();
}

}  // namespace nacre
