#include "tests/sim/file_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/ids.h"

namespace nacre::sim {
namespace {

using testing::HasSubstr;

FileChange Write(uint64_t operation, uint64_t offset, uint64_t length) {
  FileChange change;
  change.operation = operation;
  change.offset = offset;
  change.length = length;
  change.data = Pattern(operation, offset, length);
  return change;
}

bool All(const FileChange&) { return true; }
bool None(const FileChange&) { return false; }

Bytes Joined(Bytes a, const Bytes& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST(FileModel, ReadsWhatWasAcknowledged) {
  FileModel file;
  file.Begin(Write(1, 10, 20));
  EXPECT_EQ(file.CheckRead(0, 100, {}), "");
  file.Acknowledge(1, 1s);
  Bytes want = Joined(Bytes(10), Pattern(1, 10, 20));
  EXPECT_EQ(file.CheckRead(0, 100, want), "");
  EXPECT_THAT(file.CheckRead(0, 100, Bytes(30)), HasSubstr("byte 10"));
  EXPECT_THAT(file.CheckRead(0, 100, Bytes(10)), HasSubstr("got 10 instead of 30"));
}

TEST(FileModel, ACrashTakesWholeChangesOrNone) {
  for (uint64_t kept = 0; kept < 4; ++kept) {
    FileModel file;
    for (uint64_t operation : {1, 2}) {
      file.Begin(Write(operation, operation * 100, 100));
      file.Acknowledge(operation, 1s);
    }
    Bytes observed(300);
    for (uint64_t operation : {1, 2}) {
      if ((kept >> (operation - 1) & 1) == 0) continue;
      Bytes data = Pattern(operation, operation * 100, 100);
      std::copy(data.begin(), data.end(), observed.begin() + static_cast<ptrdiff_t>(operation) * 100);
    }
    EXPECT_EQ(file.Settle(observed, All), "") << kept;
    EXPECT_EQ(file.bytes(), observed);
  }
}

// The new objects have its first part, and the rest went to them later, with the whole write.
TEST(FileModel, OfAFileThatHasMovedAWriteOverTheEndMayBeThereInPart) {
  for (const bool moved : {false, true}) {
    FileModel file;
    file.Begin(Write(1, 0, 100));
    file.Acknowledge(1, 1s);
    file.MakeDurable(All);
    file.Begin(Write(2, 50, 100));
    file.Acknowledge(2, 1s);
    const Bytes whole = Joined(Pattern(1, 0, 50), Pattern(2, 50, 100));
    Bytes observed = whole;
    std::fill(observed.begin() + 100, observed.end(), std::byte{0});
    if (moved) file.MayHaveMoved();
    FileModel other = file;
    EXPECT_EQ(file.Settle(observed, All) == "", moved);
    std::fill(observed.begin() + 90, observed.end(), std::byte{0});
    EXPECT_THAT(other.Settle(observed, All), HasSubstr("byte 90"));
  }
}

TEST(FileModel, ATornBlockIsFound) {
  FileModel file;
  file.Begin(Write(1, 0, 2 * kBlockSize));
  file.Acknowledge(1, 1s);
  Bytes observed = Pattern(1, 0, 2 * kBlockSize);
  std::fill(observed.begin(), observed.begin() + kBlockSize, std::byte{0});  // a whole block may be missing
  EXPECT_EQ(FileModel(file).Settle(observed, All), "");
  observed[kBlockSize] = std::byte{0};
  EXPECT_THAT(file.Settle(observed, All), HasSubstr("no choice"));
}

// The MDS keeps the bytes of an append and writes them to the objects later, over what another client has
// sent meanwhile that does not know of them; that client then sends the same once more.
TEST(FileModel, AWriteThatMayBeLostMayBeUnderAppendsFromBefore) {
  auto the_write = [](const FileChange& change) { return change.operation == 3; };
  FileModel file;
  for (uint64_t operation : {1, 2}) {
    FileChange append = Write(operation, operation * 100, 100);
    append.append = true;
    file.Begin(append);
    file.Acknowledge(operation, 1s);
  }
  file.MakeDurable(All);
  file.Begin(Write(3, 50, 300));
  file.Acknowledge(3, 2s);

  auto found = [](uint64_t from, uint64_t to) {  // the write, and these bytes of the appends over it
    Bytes bytes = Joined(Bytes(50), Pattern(3, 50, 300));
    const Bytes appended = Joined(Pattern(1, 100, 100), Pattern(2, 200, 100));
    std::copy(appended.begin() + static_cast<ptrdiff_t>(from) - 100,
              appended.begin() + static_cast<ptrdiff_t>(to) - 100,
              bytes.begin() + static_cast<ptrdiff_t>(from));
    return bytes;
  };
  EXPECT_EQ(FileModel(file).Settle(found(100, 100), the_write), "");
  EXPECT_EQ(FileModel(file).Settle(found(200, 300), the_write), "");
  EXPECT_EQ(FileModel(file).Settle(found(100, 300), the_write), "");
  EXPECT_THAT(FileModel(file).Settle(found(100, 300), None), HasSubstr("byte 100"));
  EXPECT_THAT(FileModel(file).Settle(found(100, 200), the_write),
              HasSubstr("byte 100"));  // only the older one
  EXPECT_THAT(FileModel(file).Settle(found(200, 290), the_write), HasSubstr("byte 200"));  // a part of one
}

TEST(FileModel, AWriteIsNotUnderAnAppendThatIsNoAppend) {
  FileModel file;
  file.Begin(Write(1, 100, 100));
  file.Acknowledge(1, 1s);
  file.Begin(Write(2, 50, 300));
  file.Acknowledge(2, 2s);
  Bytes observed = Joined(Bytes(50), Pattern(2, 50, 300));
  const Bytes first = Pattern(1, 100, 100);
  std::copy(first.begin(), first.end(), observed.begin() + 100);
  EXPECT_THAT(file.Settle(observed, All), HasSubstr("no choice"));
}

// A client holds back what is written to a file of its own, and sends it as one.
TEST(FileModel, ManyChangesOfABlockMayBeLostTogether) {
  for (uint64_t kept : {0, 5, 30}) {
    FileModel file;
    for (uint64_t operation = 1; operation <= 30; ++operation) {
      file.Begin(Write(operation, 0, 100));
      file.Acknowledge(operation, 1s);
    }
    const Bytes observed = kept == 0 ? Bytes() : Pattern(kept, 0, 100);
    EXPECT_EQ(file.Settle(observed, All), "") << kept;
  }
}

// A loss of power has taken all that had been sent, and what was held back comes after it.
TEST(FileModel, AllButTheLastOfManyChangesMayBeLost) {
  FileModel file;
  for (uint64_t operation = 1; operation <= 30; ++operation) {
    file.Begin(Write(operation, 0, operation < 30 ? 100 : 60));
    file.Acknowledge(operation, 1s);
  }
  const Bytes observed = Joined(Pattern(30, 0, 60), Bytes(40));
  auto all_but = [](uint64_t kept) {
    return [kept](const FileChange& change) { return change.operation != kept; };
  };
  EXPECT_EQ(FileModel(file).Settle(observed, All), "");
  EXPECT_EQ(FileModel(file).Settle(observed, all_but(30)), "");
  EXPECT_THAT(FileModel(file).Settle(observed, all_but(7)), HasSubstr("byte 60 (block 0) is 0x00"));
}

TEST(FileModel, WhatIsDurableMustBeThere) {
  FileModel file;
  file.Begin(Write(1, 0, 10));
  file.Acknowledge(1, 1s);
  EXPECT_THAT(FileModel(file).Settle({}, None), HasSubstr("size"));
  EXPECT_EQ(FileModel(file).Settle({}, All), "");
  file.MakeDurable([](const FileChange& change) { return change.operation == 1; });
  EXPECT_THAT(file.Settle({}, All), HasSubstr("size"));
}

TEST(FileModel, AnUnansweredWriteMayHaveHappened) {
  auto unanswered = [](const FileChange& change) { return !change.acknowledged; };
  FileModel file;
  file.Begin(Write(1, 0, 3 * kBlockSize));
  EXPECT_EQ(FileModel(file).Settle({}, unanswered), "");
  EXPECT_EQ(FileModel(file).Settle(Pattern(1, 0, 3 * kBlockSize), unanswered), "");
  EXPECT_EQ(FileModel(file).Settle(Pattern(1, 0, kBlockSize), unanswered), "");
  EXPECT_THAT(FileModel(file).Settle(Pattern(2, 0, kBlockSize), unanswered), HasSubstr("no choice"));
}

TEST(FileModel, TruncationMayBeLost) {
  FileModel file;
  file.Begin(Write(1, 0, 100));
  file.Acknowledge(1, 1s);
  file.MakeDurable(All);
  FileChange cut;
  cut.kind = FileChange::kTruncate;
  cut.operation = 2;
  cut.offset = 40;
  file.Begin(cut);
  file.Acknowledge(2, 2s);
  EXPECT_EQ(file.size(), 40u);
  EXPECT_EQ(FileModel(file).Settle(Pattern(1, 0, 100), All), "");
  EXPECT_EQ(FileModel(file).Settle(Pattern(1, 0, 40), All), "");
  EXPECT_THAT(FileModel(file).Settle(Pattern(1, 0, 100), None), HasSubstr("size"));
  EXPECT_THAT(FileModel(file).Settle(Pattern(1, 0, 70), All), HasSubstr("size"));
}

}  // namespace
}  // namespace nacre::sim
