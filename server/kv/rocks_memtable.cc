#include "server/kv/rocks_memtable.h"

#include <deque>
#include <utility>

#include "server/kv/entry_tree.h"

namespace nacre {
namespace {

std::string_view View(const rocksdb::Slice& slice) { return {slice.data(), slice.size()}; }

class TreeIterator : public rocksdb::MemTableRep::Iterator {
 public:
  explicit TreeIterator(const EntryTree* tree) : cursor_(tree) {}

  bool Valid() const override { return cursor_.valid(); }
  const char* key() const override { return cursor_.entry(); }
  void Next() override { cursor_.Next(); }
  void Prev() override { cursor_.Prev(); }
  void Seek(const rocksdb::Slice& key, const char*) override { cursor_.SeekAtOrAfter(View(key)); }
  void SeekForPrev(const rocksdb::Slice& key, const char*) override { cursor_.SeekAtOrBefore(View(key)); }
  void SeekToFirst() override { cursor_.SeekToFirst(); }
  void SeekToLast() override { cursor_.SeekToLast(); }

 private:
  EntryTree::Cursor cursor_;
};

// An iterator that RocksDB ends without giving back its memory, which it wants to be in an arena of its own.
// How to allocate in that it does not publish; so the memory goes to the thread, for its next iterator.
class LentIterator : public TreeIterator {
 public:
  static LentIterator* New(const EntryTree* tree) { return new (TakeRoom()) LentIterator(tree); }

  ~LentIterator() override {
    // This object's own room is used until its base has ended as well, so it is the newest, and stays.
    spare_.emplace_back(reinterpret_cast<std::byte*>(this));
    if (spare_.size() > kSpare) spare_.pop_front();
  }

 private:
  static constexpr size_t kSpare = 8;

  explicit LentIterator(const EntryTree* tree) : TreeIterator(tree) {}

  static std::byte* TakeRoom() {
    if (spare_.empty()) return new std::byte[sizeof(LentIterator)];
    std::byte* const room = spare_.back().release();
    spare_.pop_back();
    return room;
  }

  static thread_local std::deque<std::unique_ptr<std::byte[]>> spare_;
};

thread_local std::deque<std::unique_ptr<std::byte[]>> LentIterator::spare_;

class TreeMemtable : public rocksdb::MemTableRep {
 public:
  explicit TreeMemtable(rocksdb::Allocator* allocator) : MemTableRep(allocator) {}

  void Insert(rocksdb::KeyHandle entry) override { tree_.Insert(static_cast<const char*>(entry)); }
  bool Contains(const char* entry) const override { return tree_.Contains(EntryTree::KeyOf(entry)); }
  size_t ApproximateMemoryUsage() override { return tree_.memory_bytes(); }

  // RocksDB does not publish the fields of a LookupKey either. Its own form of Get reads them, and asks for
  // an iterator that it does not delete: it gets this one.
  void Get(const rocksdb::LookupKey& key, void* argument, bool (*callback)(void*, const char*)) override {
    TreeIterator iterator(&tree_);
    for_get_ = &iterator;
    MemTableRep::Get(key, argument, callback);
  }

  Iterator* GetDynamicPrefixIterator(rocksdb::Arena* arena) override {
    Iterator* const for_get = std::exchange(for_get_, nullptr);
    return for_get != nullptr ? for_get : GetIterator(arena);
  }

  Iterator* GetIterator(rocksdb::Arena* arena) override {
    if (arena != nullptr) return LentIterator::New(&tree_);
    return new TreeIterator(&tree_);
  }

 private:
  static thread_local TreeIterator* for_get_;  // of the Get that has just begun

  EntryTree tree_;
};

thread_local TreeIterator* TreeMemtable::for_get_ = nullptr;

class TreeMemtables : public rocksdb::MemTableRepFactory {
 public:
  const char* Name() const override { return "NacreTree"; }

  rocksdb::MemTableRep* CreateMemTableRep(const rocksdb::MemTableRep::KeyComparator&,
                                          rocksdb::Allocator* allocator, const rocksdb::SliceTransform*,
                                          rocksdb::Logger*) override {
    return new TreeMemtable(allocator);
  }
};

}  // namespace

std::shared_ptr<rocksdb::MemTableRepFactory> NewTreeMemtables() { return std::make_shared<TreeMemtables>(); }

}  // namespace nacre
