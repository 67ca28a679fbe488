// Commits: what they put into the store, and when blocks that they have unmapped become free.
#include "server/object/journal.h"

#include <cerrno>

#include "tests/server/object/journal_fixture.h"

namespace nacre::ost {
namespace {

constexpr ObjectId kJournaled{9, 0};

TEST_F(JournalTest, AChangeIsOneBatchWithItsUndoRecord) {
  ObjectState object(kJournaled);
  auto committed = Put(&object, 3, 100, 'a');
  ASSERT_TRUE(committed.ok()) << committed.status();
  EXPECT_TRUE(committed->made);
  EXPECT_EQ(committed->delta, 1);
  EXPECT_EQ(kv_.unsynced_batches(), 1u);
  EXPECT_EQ(Mapped(kJournaled, 3), 100u);
  EXPECT_EQ(object.Record()->size, 4 * kBlockSize);
  EXPECT_EQ(LoadObject(&kv_, kJournaled).value(), object.Record());
  EXPECT_EQ(journal_->waiting_records(), 1u);
  committed = Put(&object, 3, 101, 'b');
  EXPECT_FALSE(committed->made);
  EXPECT_EQ(committed->delta, 0);
  EXPECT_EQ(object.Record()->version, 2u);
  EXPECT_EQ(Count("U"), 2u);
}

// Until the erasure of an undo record is itself on stable storage, a recovery may need the block that it
// names.
TEST_F(JournalTest, AFreedBlockIsFreeAfterTheSecondSync) {
  ObjectState object(kJournaled);
  ASSERT_TRUE(space_->allocator().MarkUsed(100) && space_->allocator().MarkUsed(101));
  ASSERT_TRUE(Put(&object, 0, 100, 'a').ok());
  ASSERT_TRUE(Put(&object, 0, 101, 'b').ok());
  EXPECT_EQ(journal_->waiting_blocks(), 1u);
  ASSERT_TRUE(Await(journal_->Sync()).ok());
  EXPECT_EQ(Count("U"), 0u);
  EXPECT_TRUE(space_->allocator().IsUsed(100));
  ASSERT_TRUE(Await(journal_->Sync()).ok());
  EXPECT_FALSE(space_->allocator().IsUsed(100));
  EXPECT_TRUE(space_->allocator().IsUsed(101));
  EXPECT_EQ(journal_->waiting_blocks(), 0u);
  EXPECT_FALSE(Await(journal_->Reclaim()).value());
}

// The kernel tells of what it could not write once, and takes it for written then.
TEST_F(JournalTest, AFlushThatHasFailedIsNotBelievedLater) {
  ObjectState object(kJournaled);
  ASSERT_TRUE(Put(&object, 0, 100, 'a').ok());
  disk_.SetFaultHook([](MemBlockStore::Operation operation, uint64_t, uint64_t) {
    return operation == MemBlockStore::Operation::kFlush ? ErrnoError(EIO, "no flush") : OkStatus();
  });
  EXPECT_TRUE(journal_->flush_failure().ok());
  EXPECT_EQ(ToErrno(Await(journal_->Sync())), EIO);
  EXPECT_EQ(Count("U"), 1u);
  disk_.SetFaultHook(nullptr);
  EXPECT_EQ(ToErrno(journal_->flush_failure()), EIO);
  EXPECT_EQ(ToErrno(Await(journal_->Sync())), EIO);
  EXPECT_EQ(ToErrno(Await(journal_->FlushData())), EIO);
  EXPECT_EQ(ToErrno(Await(journal_->Reclaim()).status()), EIO);
  EXPECT_EQ(Count("U"), 1u) << "by which a start takes back what is not there";
}

TEST_F(JournalTest, AFailedFlushOfRepairedBlocksIsOneOfAll) {
  ObjectState object(kJournaled);
  ASSERT_TRUE(Put(&object, 0, 100, 'a').ok());
  disk_.SetFaultHook([](MemBlockStore::Operation operation, uint64_t, uint64_t) {
    return operation == MemBlockStore::Operation::kFlush ? ErrnoError(EIO, "no flush") : OkStatus();
  });
  EXPECT_EQ(ToErrno(Await(journal_->FlushData())), EIO);
  disk_.SetFaultHook(nullptr);
  EXPECT_EQ(ToErrno(Await(journal_->Sync())), EIO);
}

TEST_F(JournalTest, ACommitThatFailsHasChangedNothing) {
  ObjectState object(kJournaled);
  ASSERT_TRUE(Put(&object, 0, 100, 'a').ok());
  TestRequest request(5, 0, 1);
  kv_.SetCommitHook([](const KvBatch&) { return ErrnoError(ENOSPC, "full"); });
  EXPECT_EQ(ToErrno(Put(&object, 0, 101, 'b', &request, true).status()), ENOSPC);
  kv_.SetCommitHook(nullptr);
  EXPECT_EQ(object.Record()->version, 1u);
  EXPECT_EQ(Mapped(kJournaled, 0), 100u);
  EXPECT_EQ(journal_->waiting_blocks(), 0u) << "the old block is in use as before";
  EXPECT_FALSE(request.stored());
  EXPECT_EQ(request.committing, 0);
  EXPECT_TRUE(Await(journal_->Sync()).ok());
  EXPECT_FALSE(KeptAnswer(5, 0).has_value());
  EXPECT_TRUE(Put(&object, 0, 101, 'b', &request, true).ok());
  EXPECT_TRUE(Await(journal_->Sync()).ok());
  EXPECT_EQ(Count("U"), 0u) << "the failed one holds nothing up";
  EXPECT_TRUE(KeptAnswer(5, 0).has_value());
}

TEST_F(JournalTest, TheLastChangeOfARequestTakesItsAnswerAlong) {
  ObjectState object(kJournaled), another({9, 1});
  TestRequest request(5, 2, 7);
  ASSERT_TRUE(Put(&object, 0, 100, 'a', &request).ok());
  ASSERT_TRUE(Put(&object, 1, 101, 'b', &request).ok());
  ASSERT_TRUE(Put(&another, 0, 102, 'c', &request, true).ok());
  EXPECT_TRUE(request.stored());
  EXPECT_EQ(Count("A"), 0u) << "the undo record has it";
  EXPECT_EQ(kv_.unsynced_batches(), 3u) << "the answer costs no batch of its own";
  ASSERT_TRUE(Recover().ok());
  EXPECT_EQ(KeptAnswer(5, 2), (AnswerRecord{7, 1, 3}));
}

TEST_F(JournalTest, ARequestThatIsNotDoneHasNoAnswer) {
  ObjectState object(kJournaled);
  TestRequest request(5, 2, 7);
  ASSERT_TRUE(Put(&object, 0, 100, 'a', &request).ok());
  EXPECT_FALSE(request.stored());
  ASSERT_TRUE(Recover().ok());
  EXPECT_EQ(Count("A"), 0u);
}

TEST_F(JournalTest, OfASlotTheNewestAnswerIsKept) {
  ObjectState object(kJournaled);
  for (uint64_t sequence = 1; sequence <= 9; ++sequence) {
    TestRequest request(5, sequence % 2, sequence);
    ASSERT_TRUE(Put(&object, 0, 100 + sequence, 'a', &request, true).ok());
  }
  ASSERT_TRUE(Await(journal_->Sync()).ok());
  EXPECT_EQ(Count("U"), 0u);
  EXPECT_EQ(Count("A"), 2u);
  EXPECT_EQ(KeptAnswer(5, 0)->sequence, 8u);
  EXPECT_EQ(KeptAnswer(5, 1)->sequence, 9u);
}

TEST_F(JournalTest, ForgottenAnswersGoWhereverTheyAre) {
  ObjectState object(kJournaled);
  TestRequest kept(5, 0, 1), undo(5, 1, 2), other(6, 0, 1), again(5, 1, 3);
  ASSERT_TRUE(Put(&object, 0, 100, 'a', &kept, true).ok());
  ASSERT_TRUE(Await(journal_->Sync()).ok());
  ASSERT_TRUE(Put(&object, 0, 101, 'b', &undo, true).ok());
  ASSERT_TRUE(Put(&object, 0, 102, 'c', &other, true).ok());
  journal_->ForgetAnswers({{5, 2}});
  ASSERT_TRUE(Put(&object, 0, 103, 'd', &again, true).ok()) << "the session has come back";
  kv_.SetCommitHook([](const KvBatch&) { return ErrnoError(ENOSPC, "full"); });
  ASSERT_TRUE(Await(journal_->Sync()).ok());
  EXPECT_TRUE(KeptAnswer(5, 0).has_value()) << "the next sync tries it again";
  kv_.SetCommitHook(nullptr);
  ASSERT_TRUE(Await(journal_->Sync()).ok());
  EXPECT_FALSE(KeptAnswer(5, 0).has_value());
  EXPECT_EQ(KeptAnswer(5, 1)->sequence, 3u);
  EXPECT_EQ(Count("A"), 2u);
  journal_->ForgetAnswers({{6, 1}});
  ASSERT_TRUE(Await(journal_->Sync()).ok()) << "with nothing else to do";
  EXPECT_FALSE(KeptAnswer(6, 0).has_value());
}

TEST_F(JournalTest, AnAnswerWithoutAChangeIsRecordedByItself) {
  TestRequest request(5, 2, 7);
  ASSERT_TRUE(Await(journal_->Record(&request)).ok());
  TestRequest fenced(6, 0, 1);
  fenced.refusal = ErrnoError(ESTALE, "fenced");
  EXPECT_EQ(ToErrno(Await(journal_->Record(&fenced))), ESTALE);
  ASSERT_TRUE(Await(journal_->Sync()).ok());
  EXPECT_EQ(KeptAnswer(5, 2), (AnswerRecord{7, 1, 0}));
  EXPECT_EQ(Count("O"), 0u);
  EXPECT_FALSE(KeptAnswer(6, 0).has_value());
}

TEST_F(JournalTest, TheOriginatorHasTheLastWord) {
  ObjectState object(kJournaled);
  TestRequest request(5, 0, 1);
  request.refusal = ErrnoError(ESTALE, "fenced meanwhile");
  EXPECT_EQ(ToErrno(Put(&object, 0, 100, 'a', &request, true).status()), ESTALE);
  EXPECT_EQ(kv_.unsynced_batches(), 0u);
  EXPECT_EQ(journal_->waiting_records(), 0u);
  EXPECT_FALSE(object.Record().has_value());
}

TEST_F(JournalTest, AGrowthRecordGoesWhenTheMdtKnowsTheEnd) {
  ObjectState object(kJournaled);
  TestRequest request(5, 0, 1);
  ASSERT_TRUE(Put(&object, 0, 100, 'a', &request).ok());
  EXPECT_EQ(Count("W"), 1u);
  ASSERT_TRUE(Put(&object, 1, 101, 'b', &request).ok());
  EXPECT_EQ(Count("W"), 1u);
  ASSERT_TRUE(Await(journal_->Settle(&object, 5, 1)).ok());
  EXPECT_EQ(Count("W"), 1u) << "the object has changed since version 1";
  ASSERT_TRUE(Await(journal_->Settle(&object, 5, 2)).ok());
  EXPECT_EQ(Count("W"), 0u);
  ASSERT_TRUE(Put(&object, 2, 102, 'c', &request).ok());
  EXPECT_EQ(Count("W"), 1u);
}

TEST_F(JournalTest, AClosedJournalChangesNothing) {
  ObjectState object(kJournaled);
  TestRequest request(5, 0, 1);
  journal_->Close();
  EXPECT_EQ(ToErrno(Put(&object, 0, 100, 'a').status()), ESHUTDOWN);
  EXPECT_EQ(ToErrno(Await(journal_->Record(&request))), ESHUTDOWN);
  EXPECT_EQ(kv_.unsynced_batches(), 0u);
}

}  // namespace
}  // namespace nacre::ost
