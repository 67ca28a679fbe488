// Recovery at a start, from the undo records that the last process has left.
#include <cerrno>

#include "tests/server/object/journal_fixture.h"

namespace nacre::ost {
namespace {

constexpr ObjectId kFirst{9, 0}, kSecond{9, 1};

class RecoveryTest : public JournalTest {
 protected:
  StatusOr<Journal::Committed> PutLost(ObjectState* object, uint64_t block, uint64_t physical, char content,
                                       TestRequest* by = nullptr) {
    return Put(object, block, physical, content, by, by != nullptr, /*arrives=*/false);
  }
  void Expect(uint64_t verified, uint64_t rolled_back) {
    auto recovered = Recover();
    ASSERT_TRUE(recovered.ok()) << recovered.status();
    EXPECT_EQ(recovered->verified, verified);
    EXPECT_EQ(recovered->rolled_back, rolled_back);
    EXPECT_EQ(Count("U"), 0u);
    EXPECT_EQ(kv_.unsynced_batches(), 0u) << "what is left is made to last before it is built upon";
  }

  ObjectState first_{kFirst}, second_{kSecond};
};

TEST_F(RecoveryTest, WhatHasArrivedStays) {
  ASSERT_TRUE(Put(&first_, 0, 100, 'a').ok());
  ASSERT_TRUE(Put(&second_, 0, 101, 'b').ok());
  Expect(2, 0);
  EXPECT_EQ(Mapped(kFirst, 0), 100u);
  EXPECT_EQ(Mapped(kSecond, 0), 101u);
}

// Also what did arrive: what survives is what was there at one moment.
TEST_F(RecoveryTest, WhatHasNotArrivedIsTakenBackWithAllBehindIt) {
  ASSERT_TRUE(Put(&first_, 0, 100, 'a').ok());
  ASSERT_TRUE(PutLost(&first_, 0, 101, 'b').ok());
  ASSERT_TRUE(Put(&second_, 0, 102, 'c').ok());
  Expect(1, 2);
  EXPECT_EQ(Mapped(kFirst, 0), 100u);
  EXPECT_EQ(LoadObject(&kv_, kFirst).value()->version, 1u);
  EXPECT_EQ(Mapped(kSecond, 0), std::nullopt);
  EXPECT_FALSE(LoadObject(&kv_, kSecond).value().has_value());
}

TEST_F(RecoveryTest, WhatWasSyncedIsNotLookedAt) {
  ASSERT_TRUE(PutLost(&first_, 0, 100, 'a').ok());  // rots later, say
  ASSERT_TRUE(Await(journal_->Sync()).ok());
  ASSERT_TRUE(Await(journal_->Sync()).ok());
  Expect(0, 0);
  EXPECT_EQ(Mapped(kFirst, 0), 100u);
}

// Else a repeat would be told that it is done.
TEST_F(RecoveryTest, AnAnswerIsTakenBackWithItsChange) {
  TestRequest before(5, 0, 1), lost(5, 1, 2), behind(6, 0, 1), nothing(7, 0, 1);
  ASSERT_TRUE(Put(&first_, 0, 100, 'a', &before, true).ok());
  ASSERT_TRUE(PutLost(&first_, 1, 101, 'b', &lost).ok());
  ASSERT_TRUE(Put(&second_, 0, 102, 'c', &behind, true).ok());
  ASSERT_TRUE(Await(journal_->Record(&nothing)).ok());
  Expect(1, 3);
  EXPECT_TRUE(KeptAnswer(5, 0).has_value());
  EXPECT_EQ(Count("A"), 1u);
}

// A request without a change of its own may have been answered from a state that a loss of power takes back.
TEST_F(RecoveryTest, AnAnswerByItselfStaysIfAllBeforeItDoes) {
  TestRequest nothing(7, 0, 1);
  ASSERT_TRUE(Put(&first_, 0, 100, 'a').ok());
  ASSERT_TRUE(Await(journal_->Record(&nothing)).ok());
  Expect(2, 0);
  EXPECT_EQ(KeptAnswer(7, 0), (AnswerRecord{1, 1, 0}));
}

TEST_F(RecoveryTest, TakingBackAnAnswerByItselfTouchesNoObject) {
  ObjectState none(ObjectId{});  // the object that an answer's undo record does not name
  TestRequest nothing(7, 0, 1);
  ASSERT_TRUE(Put(&none, 0, 100, 'a').ok());
  ASSERT_TRUE(PutLost(&first_, 0, 101, 'b').ok());
  ASSERT_TRUE(Await(journal_->Record(&nothing)).ok());
  Expect(1, 2);
  EXPECT_FALSE(KeptAnswer(7, 0).has_value());
  EXPECT_TRUE(LoadObject(&kv_, ObjectId{}).value().has_value());
}

TEST_F(RecoveryTest, ASlotThatWasUsedAgain) {
  TestRequest acknowledged(5, 0, 1), lost(5, 0, 2);
  ASSERT_TRUE(Put(&first_, 0, 100, 'a', &acknowledged, true).ok());
  ASSERT_TRUE(PutLost(&first_, 0, 101, 'b', &lost).ok());
  Expect(1, 1);
  EXPECT_EQ(KeptAnswer(5, 0)->sequence, 1u) << "the second is not done";
}

TEST_F(RecoveryTest, ItCanBeCutShortAndBegunAgain) {
  TestRequest lost(5, 0, 1), behind(6, 0, 1);
  ASSERT_TRUE(PutLost(&first_, 0, 100, 'a', &lost).ok());
  ASSERT_TRUE(Put(&first_, 1, 101, 'b', &behind, true).ok());
  ASSERT_TRUE(Put(&second_, 0, 102, 'c').ok());
  int commits = 0;
  kv_.SetCommitHook([&commits](const KvBatch&) {
    return ++commits == 2 ? ErrnoError(EIO, "the process ends here") : OkStatus();
  });
  EXPECT_FALSE(Recover().ok());
  kv_.SetCommitHook(nullptr);
  Expect(0, 2);
  EXPECT_EQ(Count("O"), 0u);
  EXPECT_EQ(Count("E"), 0u);
  EXPECT_EQ(Count("A"), 0u);
}

TEST_F(RecoveryTest, ADamagedUndoRecordIsAnError) {
  KvBatch batch;
  batch.Put(UndoKey(1), "nonsense");
  ASSERT_TRUE(Await(kv_.Commit(std::move(batch))).ok());
  EXPECT_TRUE(absl::IsDataLoss(Recover().status()));
}

}  // namespace
}  // namespace nacre::ost
