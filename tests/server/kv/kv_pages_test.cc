#include "server/kv/kv_pages.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <optional>

#include "server/kv/mem_kv.h"
#include "tests/common/await.h"

namespace nacre {
namespace {

class KvPagesTest : public testing::Test {
 protected:
  void Put(std::string key) {
    KvBatch batch;
    batch.Put(std::move(key), "x");
    ASSERT_TRUE(Await(store_.Commit(std::move(batch))).ok());
  }
  void Erase(std::string key) {
    KvBatch batch;
    batch.Erase(std::move(key));
    ASSERT_TRUE(Await(store_.Commit(std::move(batch))).ok());
  }
  std::vector<std::string> Keys(KvPages<KvStore>* pages) {
    std::vector<std::string> keys;
    auto page = pages->Next();
    EXPECT_TRUE(page.ok()) << page.status();
    if (!page.ok()) return keys;
    for (const KvEntry& entry : *page) keys.push_back(entry.key);
    return keys;
  }
  using Key = std::vector<std::string>;

  MemKv store_;
};

// With as many entries as are no page, a part of one, just one, one more, and several.
TEST_F(KvPagesTest, GoesOverWhatHasThePrefixAndNothingElse) {
  constexpr size_t kPage = 4;
  for (const char* other : {"a", "az", "b", "d", "ca\xff"}) Put(other);
  for (size_t count = 0; count <= 3 * kPage; ++count) {
    std::vector<std::string> found, expected;
    for (size_t i = 0; i < count; ++i) expected.push_back(absl::StrFormat("c\xff%02d", i));
    size_t scans = 0;
    for (KvPages<KvStore> pages(store_, "c\xff", kPage); pages.more(); ++scans) {
      for (std::string& key : Keys(&pages)) found.push_back(std::move(key));
      ASSERT_LE(scans, count) << "no end";
    }
    EXPECT_EQ(found, expected);
    EXPECT_EQ(scans, count / kPage + 1);
    Put(absl::StrFormat("c\xff%02d", count));
  }
}

TEST_F(KvPagesTest, SeesWhatChangesBehindItsPosition) {
  for (int i = 0; i < 8; ++i) Put(absl::StrCat("c", i));
  KvPages<KvStore> pages(store_, "c", 3);
  EXPECT_EQ(Keys(&pages), (Key{"c0", "c1", "c2"}));
  for (const char* key : {"c0", "c1", "c2", "c4"}) Erase(key);  // the last one of a page among them
  Put("c1a");
  Put("c2a");
  EXPECT_EQ(Keys(&pages), (Key{"c2a", "c3", "c5"}));
  EXPECT_EQ(Keys(&pages), (Key{"c6", "c7"}));
  EXPECT_FALSE(pages.more());
}

// The table's owner closes it, or the disk fails for a while.
TEST_F(KvPagesTest, AnErrorLeavesItWhereItIs) {
  struct Failing {
    StatusOr<std::vector<KvEntry>> Scan(std::string_view from, std::string_view to, size_t limit) {
      if (fails) return ErrnoError(EIO, "planted");
      return store.Scan(from, to, limit);
    }
    KvStore& store;
    bool fails = false;
  } failing{store_};
  for (int i = 0; i < 5; ++i) Put(absl::StrCat("c", i));
  KvPages<Failing> pages(failing, "c", 3);
  ASSERT_TRUE(pages.Next().ok());
  failing.fails = true;
  EXPECT_EQ(ToErrno(pages.Next().status()), EIO);
  EXPECT_EQ(ToErrno(ForEachEntry(failing, "c", [](KvEntry&) { return OkStatus(); })), EIO);
  EXPECT_TRUE(pages.more());
  failing.fails = false;
  auto page = pages.Next();
  ASSERT_TRUE(page.ok());
  ASSERT_EQ(page->size(), 2u);
  EXPECT_EQ(page->front().key, "c3");
  EXPECT_FALSE(pages.more());
}

TEST_F(KvPagesTest, AVisitorsErrorEndsTheWalk) {
  for (int i = 0; i < 5; ++i) Put(absl::StrCat("c", i));
  int visited = 0;
  auto visit = [&](KvEntry& entry) {
    return ++visited, entry.key == "c2" ? ErrnoError(EBADF, "") : OkStatus();
  };
  EXPECT_EQ(ToErrno(ForEachEntry(store_, "c", visit, 2)), EBADF);
  EXPECT_EQ(visited, 3);
}

}  // namespace
}  // namespace nacre
