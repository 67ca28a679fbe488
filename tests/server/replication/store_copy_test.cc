// One copy of the MDT: its position, its history, and what replaces it as a whole.
#include "server/replication/store_copy.h"

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <map>

#include "common/random.h"
#include "server/kv/mem_kv.h"

namespace nacre::replication {
namespace {

using Content = std::map<std::string, std::string>;

TEST(HistoryTest, ContainsWhatEachEpochHasMade) {
  History history;
  history.Begin({1, 1});
  history.Begin({3, 11});
  const Position last{3, 20};
  EXPECT_TRUE(history.Contains({1, 1}, last));
  EXPECT_TRUE(history.Contains({1, 10}, last));
  EXPECT_FALSE(history.Contains({1, 11}, last)) << "another primary has made the eleventh";
  EXPECT_FALSE(history.Contains({2, 11}, last)) << "of an epoch in which nothing was acknowledged";
  EXPECT_FALSE(history.Contains({3, 10}, last));
  EXPECT_TRUE(history.Contains({3, 20}, last));
  EXPECT_FALSE(history.Contains({3, 21}, last));
  EXPECT_FALSE(history.Contains({}, last));
  EXPECT_EQ(*History::Parse(history.Encode()), history);
}

TEST(HistoryTest, ALaterVersionIsRefused) {
  proto::StoreHistory stored;
  stored.set_version(2);
  EXPECT_EQ(History::Parse(stored.SerializeAsString()).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::IsDataLoss(History::Parse("x").status()));
}

class StoreCopyTest : public testing::Test {
 protected:
  template <typename T>
  T Run(Task<T> task) {
    std::optional<T> result;
    Spawn(context_.get_executor(), std::move(task), [&](T value) { result = std::move(value); });
    context_.restart();
    context_.run();
    return *std::move(result);
  }
  std::unique_ptr<StoreCopy> Open(MemKv* disk, std::string boot = "boot") {
    return *Run(StoreCopy::Open(disk, std::move(boot), 1 << 20));
  }
  void Fill(MemKv* disk, const Content& content) {
    KvBatch batch;
    for (const auto& [key, value] : content) batch.Put(key, value);
    EXPECT_TRUE(Run(disk->Commit(std::move(batch))).ok());
  }
  Content MdtOf(MemKv& disk) {
    Content content;
    const auto entries = disk.Scan({}, kOwnPrefix, 1 << 20);
    for (const KvEntry& entry : *entries) content[entry.key] = entry.value;
    return content;
  }
  // Of an epoch's first change.
  void Begin(StoreCopy* copy, uint64_t epoch) {
    EXPECT_TRUE(Run(copy->NoteWhole("fs")).ok());
    EXPECT_TRUE(Run(copy->Apply(copy->FirstOf(epoch))).ok());
  }
  Status Install(StoreCopy* copy, proto::InstallPart part) {
    return Run(copy->Install(std::move(part), "fs"));
  }
  std::vector<proto::InstallPart> PartsOf(MemKv& disk, uint64_t number, Position instead_of) {
    std::vector<proto::InstallPart> all;
    auto parts = StoreParts::Take(disk, number, instead_of);
    EXPECT_TRUE(parts.ok()) << parts.status();
    while (all.empty() || !all.back().last()) all.push_back(*(*parts)->Next());
    return all;
  }

  asio::io_context context_;
  MemKv from_, to_;
};

TEST_F(StoreCopyTest, AnyContentBecomesAnyOther) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    SeededRandom random(seed);
    MemKv from, to;
    Content source, target;
    for (int i = 0; i < 3000; ++i) {
      const std::string key = absl::StrCat("k", random.Below(5000));
      const std::string value(random.Below(900), 'v');
      if (!random.OneIn(3)) source[key] = value;
      if (!random.OneIn(3)) target[key] = random.OneIn(4) ? "old" : value;
    }
    if (seed % 5 == 0) target.clear();
    if (seed % 7 == 0) source.clear();
    Fill(&from, source);
    Fill(&to, target);
    auto sender = Open(&from), receiver = Open(&to);
    Begin(sender.get(), 4);
    for (proto::InstallPart& part : PartsOf(from, seed, receiver->position())) {
      proto::InstallPart again = part;
      ASSERT_TRUE(Install(receiver.get(), std::move(part)).ok());
      if (random.OneIn(2) && !again.first() && !again.last()) {
        ASSERT_TRUE(Install(receiver.get(), again).ok()) << "its answer was lost";
      }
    }
    EXPECT_EQ(MdtOf(to), source) << seed;
    EXPECT_EQ(receiver->position(), sender->position());
    EXPECT_EQ(receiver->history(), sender->history());
    EXPECT_EQ(receiver->filesystem(), "fs");
    EXPECT_EQ(Open(&to)->position(), sender->position()) << "also for the next process";
  }
}

TEST_F(StoreCopyTest, OnlyWhatDiffersIsWritten) {
  Content content;
  for (int i = 0; i < 2000; ++i) content[absl::StrCat("k", i)] = "v";
  Fill(&to_, content);
  content["k77"] = "w";
  Fill(&from_, content);
  auto sender = Open(&from_), receiver = Open(&to_);
  Begin(sender.get(), 1);
  size_t written = 0;
  to_.SetCommitHook([&](const KvBatch& batch) {
    for (const KvBatch::Op& op : batch.ops()) written += op.key < kOwnPrefix;
    return OkStatus();
  });
  for (proto::InstallPart& part : PartsOf(from_, 1, {})) ASSERT_TRUE(Install(receiver.get(), part).ok());
  EXPECT_EQ(written, 1u);
  EXPECT_EQ(MdtOf(to_), content);
}

TEST_F(StoreCopyTest, WhatIsHalfThereHasNoPosition) {
  Content content;
  for (int i = 0; i < 20; ++i) content[absl::StrCat("k", i)] = std::string(100 << 10, 'v');
  Fill(&from_, content);
  auto sender = Open(&from_);
  Begin(sender.get(), 1);
  auto receiver = Open(&to_);
  Begin(receiver.get(), 2);
  auto parts = PartsOf(from_, 1, receiver->position());
  ASSERT_GT(parts.size(), 2u);
  ASSERT_TRUE(Install(receiver.get(), parts[0]).ok());
  ASSERT_TRUE(Install(receiver.get(), parts[1]).ok());
  EXPECT_TRUE(receiver->position().blank());
  to_.CrashProcess();
  receiver = Open(&to_);
  EXPECT_TRUE(receiver->position().blank());
  EXPECT_FALSE(Install(receiver.get(), parts[2]).ok()) << "what came before is not known any more";
  for (proto::InstallPart& part : PartsOf(from_, 2, {})) ASSERT_TRUE(Install(receiver.get(), part).ok());
  EXPECT_EQ(MdtOf(to_), content);
}

// A message of an earlier attempt that comes late.
TEST_F(StoreCopyTest, LatePartsChangeNothing) {
  Content content;
  for (int i = 0; i < 20; ++i) content[absl::StrCat("k", i)] = std::string(100 << 10, 'v');
  Fill(&from_, content);
  auto sender = Open(&from_), receiver = Open(&to_);
  Begin(sender.get(), 1);
  const auto old = PartsOf(from_, 1, {});
  content["k7"] = "new";
  Fill(&from_, {{"k7", "new"}});
  const auto parts = PartsOf(from_, 2, {});
  ASSERT_TRUE(Install(receiver.get(), old[0]).ok());
  for (size_t i = 0; i < parts.size(); ++i) {
    ASSERT_TRUE(Install(receiver.get(), parts[i]).ok());
    for (size_t late = 1; late < old.size(); ++late) EXPECT_FALSE(Install(receiver.get(), old[late]).ok());
  }
  EXPECT_FALSE(Install(receiver.get(), old[0]).ok()) << "it was to replace an empty store";
  EXPECT_EQ(MdtOf(to_), content);
  EXPECT_EQ(receiver->position(), sender->position());
}

TEST_F(StoreCopyTest, KnowsWhetherItMayLackSomething) {
  {
    auto copy = Open(&to_, "boot 1");
    EXPECT_FALSE(copy->may_lack()) << "it has never had anything";
    Begin(copy.get(), 1);
  }
  EXPECT_FALSE(Open(&to_, "boot 1")->may_lack()) << "the end of a process loses nothing";
  EXPECT_TRUE(Open(&to_, "boot 2")->may_lack());
  auto copy = Open(&to_, "boot 2");
  EXPECT_TRUE(Run(copy->EndClean()).ok());
  EXPECT_TRUE(Open(&to_, "boot 2")->may_lack()) << "what it lacks an orderly end does not bring back";
  EXPECT_TRUE(Run(copy->NoteWhole("fs")).ok());
  EXPECT_TRUE(Run(copy->EndClean()).ok());
  EXPECT_FALSE(Open(&to_, "boot 3")->may_lack());
  EXPECT_TRUE(Open(&to_, "boot 4")->may_lack()) << "boot 3 may have changed it";
}

TEST_F(StoreCopyTest, ABlankStoreHasNothingInIt) {
  EXPECT_TRUE(Run(StoreCopy::MarkBlank(&to_)).ok());
  EXPECT_TRUE(Open(&to_)->made_blank());
  EXPECT_TRUE(*Open(&to_)->Empty());
  Fill(&from_, {{"k", "v"}});
  EXPECT_FALSE(Run(StoreCopy::MarkBlank(&from_)).ok());
}

// Fifteen groups of 100 bytes, of which the eighth begins epoch 2.
void AddFifteen(GroupLog* log) {
  for (uint64_t i = 1; i <= 15; ++i) {
    auto group = std::make_shared<Group>();
    group->previous = {i <= 8 ? uint64_t{1} : 2, i - 1};
    group->position = {i < 8 ? uint64_t{1} : 2, i};
    group->ops.push_back({absl::StrCat("k", i), "", false});
    group->bytes = 100;
    log->Add(std::move(group));
  }
}

TEST(GroupLogTest, FindsWhatComesNextAndForgetsTheOldest) {
  GroupLog log(10 * (sizeof(Group) + 100));
  AddFifteen(&log);
  EXPECT_EQ(log.After({2, 14})->position, (Position{2, 15}));
  EXPECT_EQ(log.After({1, 7})->position, (Position{2, 8}));
  EXPECT_EQ(log.After({2, 7}), nullptr);
  EXPECT_EQ(log.After({2, 15}), nullptr);
  EXPECT_EQ(log.After({1, 4}), nullptr) << "too old";
  EXPECT_NE(log.After({1, 5}), nullptr);
}

TEST(GroupLogTest, ManyAreOneUpToSoManyBytesAndWithinAnEpoch) {
  GroupLog log(1 << 20);
  AddFifteen(&log);
  const GroupPtr three = log.After({1, 2}, 399);
  EXPECT_EQ(three->previous, (Position{1, 2}));
  EXPECT_EQ(three->position, (Position{1, 5}));
  EXPECT_EQ(three->bytes, 300u);
  ASSERT_EQ(three->ops.size(), 3u);
  EXPECT_EQ(three->ops.front().key, "k3");
  EXPECT_EQ(three->ops.back().key, "k5");
  EXPECT_EQ(log.After({1, 2}, 99)->position, (Position{1, 3})) << "at least one";
  EXPECT_EQ(log.After({1, 5}, 10'000)->position, (Position{1, 7})) << "not the first of the next epoch";
  EXPECT_EQ(log.After({1, 7}, 10'000)->position, (Position{2, 8})) << "which goes alone";
  EXPECT_EQ(log.After({2, 8}, 10'000)->position, (Position{2, 15}));
}

}  // namespace
}  // namespace nacre::replication
