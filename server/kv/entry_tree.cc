#include "server/kv/entry_tree.h"

#include <algorithm>
#include <cstring>
#include <thread>

namespace nacre {
namespace {

constexpr size_t kAge = 8;  // bytes at a key's end that tell which of two entries is newer
constexpr int kTriesAtOnce = 64;

// No key is lower: the users' key is empty, and nothing is newer.
constexpr std::string_view kLowest = "\xff\xff\xff\xff\xff\xff\xff\xff";

uint64_t AgeOf(std::string_view key) {
  uint64_t age;
  std::memcpy(&age, key.data() + key.size() - kAge, kAge);
  return age;
}

int Compare(std::string_view a, std::string_view b) {
  const size_t common = std::min(a.size(), b.size()) - kAge;
  const int order = std::memcmp(a.data(), b.data(), common);
  if (order != 0) return order;
  if (a.size() != b.size()) return a.size() < b.size() ? -1 : 1;
  const uint64_t age_a = AgeOf(a), age_b = AgeOf(b);
  return age_a > age_b ? -1 : age_a < age_b;
}

std::string_view UserKey(std::string_view key) { return key.substr(0, key.size() - kAge); }

// Eight bytes of a user's key from `begin` on, big-endian: in their order. Zeros from `end` on, and behind
// the key's end.
uint64_t WordOf(std::string_view key, size_t begin, size_t end) {
  uint64_t word = 0;
  if (begin + sizeof(word) <= std::min(end, key.size())) {
    std::memcpy(&word, key.data() + begin, sizeof(word));
    return __builtin_bswap64(word);
  }
  for (size_t i = begin; i < begin + sizeof(word); ++i)
    word = word << 8 | (i < end && i < key.size() ? static_cast<uint8_t>(key[i]) : 0);
  return word;
}

uint64_t HeadOf(std::string_view key, size_t common) { return WordOf(key, common, key.size()); }

size_t CommonOf(std::string_view a, std::string_view b) {
  const size_t most = std::min(a.size(), b.size());
  return static_cast<size_t>(std::mismatch(a.begin(), a.begin() + most, b.begin()).first - a.begin());
}

bool IsOdd(uint64_t version) { return (version & 1) != 0; }

// Whether what was read while the node had this version belongs together.
bool Unchanged(const std::atomic<uint64_t>& version, uint64_t was) {
  return version.load(std::memory_order_relaxed) == was;
}

}  // namespace

// Keeps a node's version odd. Stores of that time are with release, and reads with acquire: a reader that
// sees some of them sees the odd version or a later one.
class EntryTree::Change {
 public:
  explicit Change(Node* node) : version_(&node->version), was_(version_->load(std::memory_order_relaxed)) {
    version_->store(was_ + 1, std::memory_order_relaxed);
  }
  ~Change() { version_->store(was_ + 2, std::memory_order_release); }
  Change(const Change&) = delete;

 private:
  std::atomic<uint64_t>* const version_;
  const uint64_t was_;
};

uint32_t EntryTree::Entries::CountBefore(std::string_view key, bool or_equal) const {
  const uint32_t size = this->size();
  const std::string_view user_key = UserKey(key);
  const size_t common = common_.load(std::memory_order_acquire);
  if (const int order = OrderOfPrefix(user_key, common); order != 0) return order > 0 ? 0 : size;
  const uint64_t head = HeadOf(user_key, common);
  const auto count_while = [](uint32_t low, uint32_t high, auto is_before) {
    while (low < high) {
      const uint32_t middle = (low + high) / 2;
      if (is_before(middle)) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  };
  const auto head_at = [this](uint32_t i) { return heads_[i].load(std::memory_order_acquire); };
  const uint32_t low = count_while(0, size, [&](uint32_t i) { return head_at(i) < head; });
  const auto is_before = [&](uint32_t i) {
    const int order = Compare(KeyOf(at(i)), key);
    return order < 0 || (or_equal && order == 0);
  };
  // Of several entries with a user's key what is inserted is the newest, and comes first.
  if (low == size || head_at(low) != head || !is_before(low)) return low;
  const uint32_t high = count_while(low + 1, size, [&](uint32_t i) { return head_at(i) == head; });
  return count_while(low + 1, high, is_before);
}

// How the common bytes lie to the same of a user's key: below zero if before it.
int EntryTree::Entries::OrderOfPrefix(std::string_view user_key, size_t common) const {
  for (size_t i = 0; i * sizeof(uint64_t) < common; ++i) {
    const uint64_t theirs = prefix_[i].load(std::memory_order_acquire);
    const uint64_t ours = WordOf(user_key, i * sizeof(uint64_t), common);
    if (ours != theirs) return theirs < ours ? -1 : 1;
  }
  return user_key.size() < common ? 1 : 0;
}

void EntryTree::Entries::Insert(uint32_t index, const char* entry) {
  const uint32_t size = size_.load(std::memory_order_relaxed);
  const std::string_view key = UserKey(KeyOf(entry));
  if (size == 0) {
    SetCommon(key, std::min(key.size(), kMostCommon));
  } else if (OrderOfPrefix(key, common_) != 0) {
    SetCommon(key, CommonOf(key, UserKey(KeyOf(at(0)))));
  }
  for (uint32_t i = size; i > index; --i) {
    slots_[i].store(slots_[i - 1].load(std::memory_order_relaxed), std::memory_order_release);
    heads_[i].store(heads_[i - 1].load(std::memory_order_relaxed), std::memory_order_release);
  }
  slots_[index].store(entry, std::memory_order_release);
  heads_[index].store(HeadOf(key, common_), std::memory_order_release);
  size_.store(size + 1, std::memory_order_release);
}

// All entries' keys, and this one, have so many bytes in common.
void EntryTree::Entries::SetCommon(std::string_view key, size_t common) {
  common_.store(static_cast<uint32_t>(common), std::memory_order_release);
  for (size_t word = 0; word < kWords; ++word)
    prefix_[word].store(WordOf(key, word * sizeof(uint64_t), common), std::memory_order_release);
  for (uint32_t i = 0; i < size(); ++i)
    heads_[i].store(HeadOf(UserKey(KeyOf(at(i))), common), std::memory_order_release);
}

void EntryTree::Entries::FindCommon() {
  if (size() == 0) return;
  const std::string_view first = UserKey(KeyOf(at(0)));
  const size_t common = CommonOf(first, UserKey(KeyOf(at(size() - 1))));
  SetCommon(first, std::min(common, kMostCommon));
}

void EntryTree::Entries::CopyTail(uint32_t from, Entries* to) const {
  const uint32_t size = size_.load(std::memory_order_relaxed);
  for (uint32_t i = from; i < size; ++i) to->slots_[i - from].store(at(i), std::memory_order_release);
  to->size_.store(size - from, std::memory_order_release);
  to->FindCommon();
}

void EntryTree::Entries::Shorten(uint32_t size) {
  size_.store(size, std::memory_order_release);
  FindCommon();
}

EntryTree::EntryTree() : root_(NewLeaf()) {}

EntryTree::Node* EntryTree::NewLeaf() {
  memory_.fetch_add(sizeof(Node), std::memory_order_relaxed);
  return &leaves_.emplace_back(nullptr);
}

EntryTree::Inner* EntryTree::NewInner() {
  memory_.fetch_add(sizeof(Inner), std::memory_order_relaxed);
  return &inners_.emplace_back();
}

std::string_view EntryTree::KeyOf(const char* entry) {
  uint32_t length = 0;
  for (int shift = 0;; shift += 7) {
    const auto byte = static_cast<uint8_t>(*entry++);
    length |= uint32_t{byte & 0x7fu} << shift;
    if (byte < 0x80) return {entry, length};
  }
}

void EntryTree::Insert(const char* entry) {
  const std::string_view key = KeyOf(entry);
  Path path;
  Node* node = root_.load(std::memory_order_relaxed);
  while (node->inner != nullptr) {
    const uint32_t child = node->entries.CountBefore(key, /*or_equal=*/true);
    path.push_back({node->inner, child});
    node = node->inner->children[child].load(std::memory_order_relaxed);
  }
  const uint32_t index = node->entries.CountBefore(key, /*or_equal=*/false);
  if (node->entries.full()) {
    InsertIntoFull(node, index, entry, std::move(path));
  } else {
    Change change(node);
    node->entries.Insert(index, entry);
  }
}

// A node is split in an order in which every entry can be found at any time: the new right half is filled,
// its parent learns of it, and then the left half forgets what it has no more.
void EntryTree::InsertIntoFull(Node* leaf, uint32_t index, const char* entry, Path path) {
  Node* const right = NewLeaf();
  // A key behind all of the leaf begins a leaf of its own, so that keys in rising order fill their leaves.
  const uint32_t left_size = index == kSlots ? kSlots : kSlots / 2;
  leaf->entries.CopyTail(left_size, &right->entries);
  if (index >= left_size) right->entries.Insert(index - left_size, entry);
  InsertChild(leaf, right->entries.at(0), right, std::move(path));
  Change change(leaf);
  leaf->entries.Shorten(left_size);
  if (index < left_size) leaf->entries.Insert(index, entry);
}

void EntryTree::InsertChild(Node* left, const char* lowest, Node* right, Path path) {
  if (path.empty()) {
    Inner* const root = NewInner();
    root->children[0].store(left, std::memory_order_release);
    PutChild(root, 0, lowest, right);
    root_.store(root, std::memory_order_release);
    return;
  }
  const auto [parent, index] = path.back();
  if (!parent->entries.full()) {
    PutChild(parent, index, lowest, right);
    return;
  }
  path.pop_back();
  constexpr uint32_t kMiddle = kSlots / 2;  // the entry that goes up: the lowest of the new half
  Inner* const half = NewInner();
  parent->entries.CopyTail(kMiddle + 1, &half->entries);
  for (uint32_t i = kMiddle + 1; i <= kSlots; ++i) {
    half->children[i - kMiddle - 1].store(parent->children[i].load(std::memory_order_relaxed),
                                          std::memory_order_release);
  }
  const bool goes_left = index <= kMiddle;
  if (!goes_left) PutChild(half, index - kMiddle - 1, lowest, right);
  InsertChild(parent, parent->entries.at(kMiddle), half, std::move(path));
  {
    Change change(parent);
    parent->entries.Shorten(kMiddle);
  }
  if (goes_left) PutChild(parent, index, lowest, right);
}

// Makes the child that follows children[index]; the parent has room.
void EntryTree::PutChild(Inner* parent, uint32_t index, const char* lowest, Node* child) {
  Change change(parent);
  for (uint32_t i = parent->entries.size() + 1; i > index + 1; --i) {
    parent->children[i].store(parent->children[i - 1].load(std::memory_order_relaxed),
                              std::memory_order_release);
  }
  parent->children[index + 1].store(child, std::memory_order_release);
  parent->entries.Insert(index, lowest);
}

bool EntryTree::Contains(std::string_view key) const {
  Cursor cursor(this);
  cursor.SeekAtOrAfter(key);
  return cursor.valid() && KeyOf(cursor.entry()) == key;
}

// A node is changed for less than a microsecond, unless the thread that changes it has to leave its processor
// just then: after some attempts it is given this one.
void EntryTree::Find(std::string_view key, Where where, Cursor* cursor) const {
  for (int tries = 1; !TryFind(&key, &where, cursor); ++tries) {
    if (tries % kTriesAtOnce == 0) std::this_thread::yield();
  }
}

// False: a node has changed meanwhile; or the entry is not in the leaf to which the key leads, and key and
// where now say what leads to it.
bool EntryTree::TryFind(std::string_view* key, Where* where, Cursor* cursor) const {
  const bool forward = *where == Where::kAfter || *where == Where::kAtOrAfter;
  const Node* node = root_.load(std::memory_order_acquire);
  uint64_t version = node->version.load(std::memory_order_acquire);
  // A root that has been split leads to a part of the entries only.
  if (root_.load(std::memory_order_acquire) != node) return false;
  const auto count_before = [&](const Entries& entries, bool or_equal) {
    return *where == Where::kLast ? entries.size() : entries.CountBefore(*key, or_equal);
  };
  const char *lowest = nullptr, *beyond = nullptr;  // of what is below the node: none, no limit
  while (node->inner != nullptr) {
    const Entries& entries = node->entries;
    const uint32_t child = count_before(entries, /*or_equal=*/*where != Where::kBefore);
    if (child > 0) lowest = entries.at(child - 1);
    if (child < entries.size()) beyond = entries.at(child);
    const Node* const next = node->inner->children[child].load(std::memory_order_acquire);
    const uint64_t next_version = next->version.load(std::memory_order_acquire);
    if (IsOdd(version) || !Unchanged(node->version, version)) return false;
    node = next;
    version = next_version;
  }
  const bool or_equal = *where == Where::kAfter || *where == Where::kAtOrBefore;
  const uint32_t before = count_before(node->entries, or_equal);
  const bool found = forward ? before < node->entries.size() : before > 0;
  const uint32_t index = forward ? before : before - 1;
  const char* const entry = found ? node->entries.at(index) : nullptr;
  if (IsOdd(version) || !Unchanged(node->version, version)) return false;
  const char* const neighbour = forward ? beyond : lowest;
  if (!found && neighbour != nullptr) {
    *key = KeyOf(neighbour);
    *where = forward ? Where::kAtOrAfter : Where::kBefore;
    return false;
  }
  cursor->entry_ = entry;
  cursor->leaf_ = node;
  cursor->version_ = version;
  cursor->index_ = index;
  return true;
}

void EntryTree::Cursor::SeekToFirst() { tree_->Find(kLowest, Where::kAtOrAfter, this); }

void EntryTree::Cursor::SeekToLast() { tree_->Find({}, Where::kLast, this); }

void EntryTree::Cursor::SeekAtOrAfter(std::string_view key) { tree_->Find(key, Where::kAtOrAfter, this); }

void EntryTree::Cursor::SeekAtOrBefore(std::string_view key) { tree_->Find(key, Where::kAtOrBefore, this); }

void EntryTree::Cursor::Next() {
  if (!Step(1)) tree_->Find(KeyOf(entry_), Where::kAfter, this);
}

void EntryTree::Cursor::Prev() {
  if (!Step(-1)) tree_->Find(KeyOf(entry_), Where::kBefore, this);
}

// Within the leaf, if it is as it was.
bool EntryTree::Cursor::Step(int by) {
  const uint32_t index = index_ + static_cast<uint32_t>(by);
  if (index >= leaf_->entries.size()) return false;
  const char* const entry = leaf_->entries.at(index);
  if (!Unchanged(leaf_->version, version_)) return false;
  entry_ = entry;
  index_ = index;
  return true;
}

}  // namespace nacre
