// Reads while changes are on their way into the store, compared with a map that has them at once.
#include "server/replication/overlay.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <map>
#include <thread>

#include "common/random.h"
#include "common/runtime.h"
#include "server/kv/mem_kv.h"

namespace nacre::replication {
namespace {

class OverlayTest : public testing::Test {
 protected:
  void Change(std::vector<KvBatch::Op> ops) {
    overlay.Add(++made, ops);
    pending.push_back(std::move(ops));
  }
  void Put(std::string key, std::string value) { Change({{std::move(key), std::move(value), false}}); }
  void Erase(std::string key) { Change({{std::move(key), {}, true}}); }

  // The store gets the oldest ones that it has not.
  void Store(size_t count) {
    KvBatch batch;
    for (size_t i = 0; i < count; ++i) {
      for (const KvBatch::Op& op : pending[stored + i])
        op.erase ? batch.Erase(op.key) : batch.Put(op.key, op.value);
    }
    stored += count;
    ASSERT_TRUE(runtime.Run(store.Commit(std::move(batch))).ok());
    overlay.Stored(stored);
  }

  std::string Text(std::string_view from, std::string_view to, size_t limit = 100) {
    std::string text;
    const auto entries = overlay.Scan(from, to, limit);
    EXPECT_TRUE(entries.ok()) << entries.status();
    for (const KvEntry& entry : *entries) absl::StrAppend(&text, entry.key, "=", entry.value, " ");
    return text;
  }

  Runtime runtime{1};
  MemKv store;
  Overlay overlay{store};
  uint64_t made = 0;
  size_t stored = 0;
  std::vector<std::vector<KvBatch::Op>> pending;
};

TEST_F(OverlayTest, ShowsWhatTheStoreHasNot) {
  Put("b", "1");
  Put("d", "1");
  Store(2);
  Put("a", "2");
  Erase("b");
  Put("d", "2");
  EXPECT_EQ(overlay.Get("a").value(), "2");
  EXPECT_EQ(ToErrno(overlay.Get("b").status()), ENOENT);
  EXPECT_EQ(overlay.Get("d").value(), "2");
  EXPECT_EQ(Text("", ""), "a=2 d=2 ");
  EXPECT_EQ(Text("b", "d"), "");
  EXPECT_EQ(overlay.Last("", "").value().value, "2");
  EXPECT_EQ(overlay.Last("", "d").value().key, "a");
  EXPECT_EQ(ToErrno(overlay.Last("b", "d").status()), ENOENT);
  EXPECT_EQ(ToErrno(store.Get("a").status()), ENOENT);
  Store(3);
  EXPECT_EQ(overlay.size(), 0u) << "what the store has is not kept";
  EXPECT_EQ(Text("", ""), "a=2 d=2 ");
}

TEST_F(OverlayTest, AValueStaysUntilItsLastChangeIsStored) {
  Change({{"k", "1", false}, {"k", "2", false}});
  Put("k", "3");
  Store(1);
  EXPECT_EQ(overlay.Get("k").value(), "3");
  EXPECT_EQ(overlay.size(), 1u);
  Store(1);
  EXPECT_EQ(overlay.size(), 0u);
  EXPECT_EQ(overlay.Get("k").value(), "3");
}

// Keys that are erased here leave room for those that the store has behind them, and no key is shown from
// behind the part of the store that was looked at.
TEST_F(OverlayTest, ALimitCountsWhatIsThere) {
  for (char c = 'a'; c <= 'j'; ++c) Put(std::string(1, c), "1");
  Store(10);
  for (char c = 'a'; c <= 'g'; ++c) Erase(std::string(1, c));
  Put("z", "2");
  EXPECT_EQ(Text("", "", 2), "h=1 i=1 ");
  EXPECT_EQ(Text("", "", 4), "h=1 i=1 j=1 z=2 ");
  EXPECT_EQ(Text("", "", 5), "h=1 i=1 j=1 z=2 ");
}

TEST_F(OverlayTest, SeesWhatAMapSees) {
  SeededRandom random(7);
  std::map<std::string, std::string> model;
  auto key = [&] { return absl::StrCat("k", random.Below(30)); };
  for (int step = 0; step < 20000; ++step) {
    switch (random.Below(6)) {
      case 0:
      case 1: {
        std::vector<KvBatch::Op> ops;
        for (uint64_t i = 0; i <= random.Below(3); ++i) {
          KvBatch::Op op{key(), absl::StrCat(step), random.OneIn(3)};
          if (op.erase) model.erase(op.key);
          if (op.erase) op.value.clear();
          if (!op.erase) model[op.key] = op.value;
          ops.push_back(std::move(op));
        }
        Change(std::move(ops));
        break;
      }
      case 2:
        Store(random.Below(pending.size() - stored + 1));
        break;
      case 3: {
        const std::string at = key();
        const auto it = model.find(at);
        ASSERT_EQ(overlay.Get(at).value_or(""), it == model.end() ? "" : it->second) << step;
        break;
      }
      case 4: {
        const std::string from = key(), to = random.OneIn(3) ? "" : key();
        const size_t limit = 1 + random.Below(10);
        std::string expected;
        size_t count = 0;
        for (auto it = model.lower_bound(from); it != model.end() && count < limit; ++it, ++count) {
          if (!to.empty() && it->first >= to) break;
          absl::StrAppend(&expected, it->first, "=", it->second, " ");
        }
        ASSERT_EQ(Text(from, to, limit), expected) << step;
        break;
      }
      case 5: {
        const std::string from = key(), to = random.OneIn(3) ? "" : key();
        auto it = to.empty() ? model.end() : model.lower_bound(to);
        const bool there = it != model.begin() && (--it)->first >= from;
        ASSERT_EQ(overlay.Last(from, to).value_or(KvEntry{}).key, there ? it->first : "") << step;
        break;
      }
    }
  }
}

// Two keys always change together, while others read both in one call and the store follows.
TEST_F(OverlayTest, AScanIsOfOneState) {
  constexpr int kChanges = 20000;
  Change({{"a", "0", false}, {"z", "0", false}});
  Store(1);
  std::atomic<bool> over{false};
  std::atomic<int> scans{0};
  std::thread reader([&] {
    while (!over) {
      const auto entries = overlay.Scan("", "", 10);
      ASSERT_EQ(entries->size(), 2u);
      ASSERT_EQ((*entries)[0].value, (*entries)[1].value);
      ++scans;
    }
  });
  for (int i = 1; i <= kChanges || scans < 100; ++i) {
    Change({{"a", absl::StrCat(i), false}, {"z", absl::StrCat(i), false}});
    if (i % 3 == 0) Store(pending.size() - stored);
  }
  over = true;
  reader.join();
  EXPECT_LE(overlay.size(), 2u);
}

}  // namespace
}  // namespace nacre::replication
