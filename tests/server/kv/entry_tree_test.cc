#include "server/kv/entry_tree.h"

#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <functional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "common/bytes.h"
#include "common/random.h"

namespace nacre {
namespace {

std::string Key(std::string_view user, uint64_t age) {
  std::string key(user);
  PutLittle(&key, age);
  return key;
}

// As RocksDB stores it: the key's length, the key, and something behind it.
std::string Entry(const std::string& key) {
  std::string entry;
  size_t length = key.size();
  for (; length >= 0x80; length >>= 7) entry.push_back(static_cast<char>(length | 0x80));
  entry.push_back(static_cast<char>(length));
  return entry + key + "what belongs to it";
}

// The order of the contract, said another way than in the tree.
struct Before {
  bool operator()(const std::string& a, const std::string& b) const {
    const std::string user_a = a.substr(0, a.size() - 8), user_b = b.substr(0, b.size() - 8);
    if (user_a != user_b) return user_a < user_b;
    return Age(a) > Age(b);
  }
  static uint64_t Age(const std::string& key) {
    uint64_t age = 0;
    for (size_t i = 1; i <= 8; ++i) age = age << 8 | static_cast<uint8_t>(key[key.size() - i]);
    return age;
  }
};

class EntryTreeTest : public testing::Test {
 protected:
  void Insert(std::string key) {
    tree_.Insert(entries_.emplace_back(Entry(key)).data());
    model_.insert(std::move(key));
  }

  std::string Now() const {
    return cursor_.valid() ? std::string(EntryTree::KeyOf(cursor_.entry())) : "none";
  }
  std::string At(std::set<std::string, Before>::iterator it) const {
    return it == model_.end() ? "none" : *it;
  }
  std::string Preceding(std::set<std::string, Before>::iterator it) const {
    return it == model_.begin() ? "none" : *std::prev(it);
  }

  void ExpectAllInOrder() {
    cursor_.SeekToFirst();
    for (const std::string& key : model_) {
      ASSERT_EQ(Now(), key);
      cursor_.Next();
    }
    EXPECT_FALSE(cursor_.valid());
    cursor_.SeekToLast();
    for (auto it = model_.rbegin(); it != model_.rend(); ++it) {
      ASSERT_EQ(Now(), *it);
      cursor_.Prev();
    }
    EXPECT_FALSE(cursor_.valid());
  }

  void ExpectFound(const std::string& key) {
    EXPECT_EQ(tree_.Contains(key), model_.contains(key));
    cursor_.SeekAtOrAfter(key);
    EXPECT_EQ(Now(), At(model_.lower_bound(key)));
    cursor_.SeekAtOrBefore(key);
    EXPECT_EQ(Now(), Preceding(model_.upper_bound(key)));
  }

  EntryTree tree_;
  std::deque<std::string> entries_;
  std::set<std::string, Before> model_;
  EntryTree::Cursor cursor_{&tree_};
};

TEST_F(EntryTreeTest, AnEmptyOneHasNothing) {
  ExpectAllInOrder();
  ExpectFound(Key("a", 1));
}

TEST_F(EntryTreeTest, OrdersByKeyAndThenTheNewestFirst) {
  for (const char* user : {"b", "", "a", "ab", "a\xff", "aa"}) {
    for (uint64_t age : {7, 300, 5}) Insert(Key(user, age));
  }
  ExpectAllInOrder();
  cursor_.SeekAtOrAfter(Key("a", 299));
  EXPECT_EQ(Now(), Key("a", 7));
}

TEST_F(EntryTreeTest, KeysMayBeLong) {
  for (size_t length : {126, 127, 128, 20000}) Insert(Key(std::string(length, 'x'), 1));
  ExpectAllInOrder();
}

// Enough for three levels. Each kind splits nodes at other places.
TEST_F(EntryTreeTest, HoldsManyInAnyOrder) {
  const std::vector<std::function<std::string(uint64_t)>> kinds = {
      [](uint64_t i) { return std::string(1, 'r') + std::to_string(1000000 + i); },         // rising
      [](uint64_t i) { return std::string(1, 'f') + std::to_string(1000000 - i); },         // falling
      [](uint64_t i) { return std::string(1, 'x') + std::to_string(i * 7919 % 1000003); },  // anywhere
      [](uint64_t i) { return std::string(1, 'o') + std::to_string(i % 3); },  // one key again and again
      // Longer than what a node keeps of its keys; then with zeros, which are what it has behind a key's end.
      [](uint64_t i) { return std::string(40, 'l') + std::to_string(i * 7919 % 1000003); },
      [](uint64_t i) {
        return std::string(i % 11, 'z') + std::string(i / 11 % 11, '\0') + (i % 2 ? "" : "z");
      },
  };
  for (uint64_t i = 0; i < 10000; ++i) {
    for (const auto& kind : kinds) Insert(Key(kind(i), i));
  }
  ExpectAllInOrder();
  SeededRandom random(1);
  for (int i = 0; i < 5000; ++i) {
    ExpectFound(Key(kinds[random.Below(kinds.size())](random.Below(12000)), random.Below(12000)));
  }
  EXPECT_GT(tree_.memory_bytes(), entries_.size() * sizeof(void*));
  EXPECT_LT(tree_.memory_bytes(), entries_.size() * 2 * sizeof(void*) * 3);  // a pointer and a head each
}

TEST_F(EntryTreeTest, ACursorGoesOnWhileNodesAreSplitUnderIt) {
  for (int i = 0; i < 1000; i += 10) Insert(Key("k" + std::to_string(1000 + i), 1));
  cursor_.SeekToFirst();
  auto it = model_.begin();
  for (int i = 0; i < 1000; ++i) {
    if (i % 10 != 0) Insert(Key("k" + std::to_string(1000 + i * 7919 % 1000), 2));
    if (i % 3 != 0) continue;
    i % 2 == 0 ? cursor_.Next() : cursor_.Prev();
    i % 2 == 0 ? ++it : --it;
    ASSERT_EQ(Now(), *it);
  }
}

// Readers find all that was inserted before they looked, in its order, while one thread inserts.
TEST_F(EntryTreeTest, OthersReadMeanwhile) {
  constexpr uint64_t kEntries = 60000;
  auto key = [](uint64_t i) { return Key("k" + std::to_string(i * 7919 % 100003), i); };
  std::vector<std::string> keys, entries;
  for (uint64_t i = 0; i < kEntries; ++i) entries.push_back(Entry(keys.emplace_back(key(i))));
  std::atomic<uint64_t> inserted{0};
  std::atomic<int> wrong{0};

  auto look = [&](uint64_t seed) {
    SeededRandom random(seed);
    EntryTree::Cursor cursor(&tree_);
    while (true) {
      const uint64_t upto = inserted.load(std::memory_order_acquire);
      for (int i = 0; i < 100 && upto > 0; ++i) {
        if (!tree_.Contains(keys[random.Below(upto)])) ++wrong;
      }
      cursor.SeekToFirst();
      std::string last;
      uint64_t seen = 0;
      for (; cursor.valid(); cursor.Next(), ++seen) {
        std::string now(EntryTree::KeyOf(cursor.entry()));
        if (seen > 0 && !Before()(last, now)) ++wrong;
        last = std::move(now);
      }
      if (seen < upto) ++wrong;
      if (upto == kEntries) return;
    }
  };
  std::vector<std::thread> readers;
  for (uint64_t seed = 1; seed <= 3; ++seed) readers.emplace_back(look, seed);
  for (uint64_t i = 0; i < kEntries; ++i) {
    tree_.Insert(entries[i].data());
    inserted.store(i + 1, std::memory_order_release);
  }
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace nacre
