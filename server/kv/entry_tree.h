// An ordered set of a store's newest entries: what RocksDB's list in memory was, at a fifth of its time for
// an insertion (docs/decisions/0090). A B+-tree of pointers.
//
// An entry is RocksDB's: the length of the key as a varint32, the key, and what belongs to it, which the tree
// does not look at. A key is what users call a key, followed by eight bytes, little-endian, that are higher
// for a newer entry; the order is that of the users' keys byte by byte, then newest first. No two entries
// have the same key, and none is ever taken out. The tree does not own the entries; they outlive it.
//
// One thread at a time inserts. Any number of others read meanwhile, without a lock and without keeping the
// inserting one waiting: each node has a version, odd while the node is being changed, and whoever has read
// from a node whose version is another one afterwards reads again. A cursor that is moved sees all that was
// inserted before.
//
// Entries lie anywhere in memory, so each node keeps of its keys what tells them apart (Entries), and a
// search looks at the entries themselves where that does not suffice.
#pragma once

#include <absl/container/inlined_vector.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string_view>

namespace nacre {

class EntryTree {
  struct Node;

 public:
  EntryTree();

  void Insert(const char* entry);
  bool Contains(std::string_view key) const;
  size_t memory_bytes() const { return memory_.load(std::memory_order_relaxed); }  // without the entries

  static std::string_view KeyOf(const char* entry);

  // A place in the tree, at first at no entry. Of one thread; the tree outlives it.
  class Cursor {
   public:
    explicit Cursor(const EntryTree* tree) : tree_(tree) {}

    bool valid() const { return entry_ != nullptr; }
    const char* entry() const { return entry_; }  // null unless valid

    void SeekToFirst();
    void SeekToLast();
    void SeekAtOrAfter(std::string_view key);
    void SeekAtOrBefore(std::string_view key);
    void Next();  // these two: only while it is valid
    void Prev();

   private:
    friend class EntryTree;

    bool Step(int by);

    const EntryTree* tree_;
    const char* entry_ = nullptr;
    const Node* leaf_ = nullptr;  // has the entry at index_ as long as it has this version
    uint64_t version_ = 0;
    uint32_t index_ = 0;
  };

 private:
  static constexpr uint32_t kSlots = 64;

  // Entries in their order. One thread changes them; what others read meanwhile may be any mixture of before
  // and after, but is an entry.
  //
  // The users' keys of all of them begin with the same bytes, `common_` in number (not all that they have in
  // common, maybe). A head is the eight bytes that follow in a key, big-endian, zero behind its end: what has
  // a lower head comes first, and of what has the same the keys themselves tell.
  class Entries {
   public:
    uint32_t size() const { return size_.load(std::memory_order_acquire); }
    bool full() const { return size() == kSlots; }
    const char* at(uint32_t index) const { return slots_[index].load(std::memory_order_acquire); }
    uint32_t CountBefore(std::string_view key, bool or_equal) const;

    void Insert(uint32_t index, const char* entry);
    void CopyTail(uint32_t from, Entries* to) const;  // to an empty one
    void Shorten(uint32_t size);

   private:
    static constexpr size_t kWords = 3;
    static constexpr size_t kMostCommon = kWords * sizeof(uint64_t);

    int OrderOfPrefix(std::string_view user_key, size_t common) const;
    void SetCommon(std::string_view key, size_t common);
    void FindCommon();

    std::atomic<uint32_t> size_{0};
    std::atomic<uint32_t> common_{0};
    std::array<std::atomic<uint64_t>, kWords> prefix_{};  // the common bytes, as heads are made
    std::array<std::atomic<uint64_t>, kSlots> heads_{};
    std::array<std::atomic<const char*>, kSlots> slots_{};
  };

  // An inner node has one child more than entries: at(i) is the lowest entry below children[i + 1]. A leaf
  // has none.
  struct Inner;
  struct Node {
    explicit Node(Inner* inner) : inner(inner) {}
    Inner* const inner;                // itself, or null
    std::atomic<uint64_t> version{0};  // odd: it is being changed
    Entries entries;
  };
  struct Inner : Node {
    Inner() : Node(this) {}
    std::array<std::atomic<Node*>, kSlots + 1> children{};
  };

  class Change;
  struct Step {
    Inner* node;
    uint32_t child;
  };
  using Path = absl::InlinedVector<Step, 8>;

  enum class Where { kAfter, kAtOrAfter, kAtOrBefore, kBefore, kLast };  // kLast: the key does not matter

  Node* NewLeaf();
  Inner* NewInner();
  void InsertIntoFull(Node* leaf, uint32_t index, const char* entry, Path path);
  void InsertChild(Node* left, const char* lowest, Node* right, Path path);
  static void PutChild(Inner* parent, uint32_t index, const char* lowest, Node* child);

  void Find(std::string_view key, Where where, Cursor* cursor) const;
  bool TryFind(std::string_view* key, Where* where, Cursor* cursor) const;

  std::atomic<size_t> memory_{0};
  std::deque<Node> leaves_;  // these two: by the inserting thread only
  std::deque<Inner> inners_;
  std::atomic<Node*> root_;
};

}  // namespace nacre
