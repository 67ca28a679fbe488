// Listings that go on by cookie while the directory changes: what was there all along comes exactly once.
#include <algorithm>

#include "server/metadata/keys.h"
#include "tests/common/await.h"
#include "tests/server/metadata/harness.h"

namespace nacre::mds {
namespace {

class ReaddirTest : public testing::Test {
 protected:
  std::vector<std::string> Fill(int count) {
    std::vector<std::string> names;
    for (int i = 0; i < count; ++i) {
      names.push_back(absl::StrCat("f", i));
      EXPECT_THAT(client.Mknod(kRootFid, names.back(), S_IFREG | 0644), IsOk());
    }
    return names;
  }

  // Lists in pages and calls `between` after each.
  std::vector<std::string> List(uint32_t page, const std::function<void(int)>& between, bool plus = false) {
    std::vector<std::string> names;
    uint64_t cookie = 0;
    for (int i = 0; i < 10'000; ++i) {
      auto reply = client.Readdir(kRootFid, cookie, page, plus);
      EXPECT_THAT(reply, IsOk());
      for (const auto& entry : reply.readdir().entries()) {
        EXPECT_GT(entry.cookie(), cookie);
        cookie = entry.cookie();
        names.push_back(entry.name());
      }
      if (reply.readdir().end()) return names;
      between(i);
    }
    ADD_FAILURE() << "the listing does not end";
    return names;
  }

  Harness harness;
  TestClient client{harness};
};

TEST_F(ReaddirTest, WhatStaysComesOnceWhileOthersComeAndGo) {
  SeededRandom random(7);
  std::vector<std::string> stay = Fill(60);
  std::vector<std::string> passing;
  int made = 0;
  auto listed = List(3, [&](int) {
    for (int i = 0; i < 4; ++i) {
      if (!passing.empty() && random.OneIn(2)) {
        ASSERT_THAT(client.Unlink(kRootFid, passing.back()), IsOk());
        passing.pop_back();
      } else {
        passing.push_back(absl::StrCat("passing", made++));
        ASSERT_THAT(client.Mknod(kRootFid, passing.back(), S_IFREG | 0644), IsOk());
      }
    }
  });
  for (const std::string& name : stay) EXPECT_EQ(std::count(listed.begin(), listed.end(), name), 1) << name;
  std::sort(listed.begin(), listed.end());
  EXPECT_EQ(std::adjacent_find(listed.begin(), listed.end()), listed.end());
}

TEST_F(ReaddirTest, ACookieStaysGoodWhenItsEntryIsGone) {
  std::vector<std::string> names = Fill(30);
  auto first = client.Readdir(kRootFid, 0, 10).readdir();
  ASSERT_EQ(first.entries_size(), 10);
  for (const auto& entry : first.entries()) ASSERT_THAT(client.Unlink(kRootFid, entry.name()), IsOk());
  auto rest = client.Readdir(kRootFid, first.entries(9).cookie(), 100).readdir();
  EXPECT_EQ(rest.entries_size(), 20);
  EXPECT_TRUE(rest.end());
}

TEST_F(ReaddirTest, ARenameWithinTheDirectoryHidesNothingElse) {
  std::vector<std::string> stay = Fill(20);
  ASSERT_THAT(client.Mknod(kRootFid, "moving0", S_IFREG | 0644), IsOk());
  auto listed = List(2, [&](int i) {
    ASSERT_THAT(client.Rename(kRootFid, absl::StrCat("moving", i), kRootFid, absl::StrCat("moving", i + 1)),
                IsOk());
  });
  for (const std::string& name : stay) EXPECT_EQ(std::count(listed.begin(), listed.end(), name), 1) << name;
}

TEST_F(ReaddirTest, PlusCarriesTheAttributes) {
  Fill(5);
  auto plus = client.Readdir(kRootFid, 0, 10, /*plus=*/true).readdir();
  ASSERT_EQ(plus.entries_size(), 5);
  for (const auto& entry : plus.entries()) {
    EXPECT_EQ(FromProto(entry.attr().fid()), FromProto(entry.fid()));
    EXPECT_EQ(entry.attr().mode(), S_IFREG | 0644u);
  }
  EXPECT_FALSE(client.Readdir(kRootFid, 0, 10).readdir().entries(0).has_attr());
}

// An entry whose inode is gone (another thread unlinks it between the two looks) is left out; the listing
// goes on behind it.
TEST_F(ReaddirTest, APageOfWhichNothingIsLeftIsNotTheEnd) {
  Fill(12);
  auto first = client.Readdir(kRootFid, 0, 4).readdir();
  harness.Crash();
  KvBatch batch;
  for (const auto& entry : first.entries()) batch.Erase(FidKey(Table::kInode, FromProto(entry.fid())));
  ASSERT_TRUE(Await(harness.store.Commit(std::move(batch))).ok());
  harness.Start();
  ASSERT_THAT(client.Connect(), IsOk());
  EXPECT_EQ(List(
                2, [](int) {}, /*plus=*/true)
                .size(),
            8u);
}

TEST_F(ReaddirTest, Refusals) {
  const Fid file = FidOf(client.Create(kRootFid, "a"));
  EXPECT_THAT(client.Readdir(file), Fails(ENOTDIR));
  EXPECT_THAT(client.Readdir({7, 7, 7}), Fails(ENOENT));
  auto behind = client.Readdir(kRootFid, ~uint64_t{0});
  ASSERT_THAT(behind, IsOk());
  EXPECT_EQ(behind.readdir().entries_size(), 0);
  EXPECT_TRUE(behind.readdir().end());
}

}  // namespace
}  // namespace nacre::mds
