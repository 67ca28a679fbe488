#include "client/held_leases.h"

#include <gtest/gtest.h>

#include "tests/client/cache_fixture.h"

namespace nacre::client {
namespace {

constexpr Fid kDirectory{1, 7, 0};

class HeldLeasesTest : public CacheFixture {
 protected:
  HeldLeasesTest()
      : inodes_(std::make_unique<InodeTable>(cache_, 1 << 20)),
        leases_(std::make_unique<HeldLeases>(*inodes_, process_->clock(), false)) {}

  static proto::MetadataReply Granting(uint64_t lease) {
    proto::MetadataReply reply;
    proto::Lease* granted = reply.add_directory_leases();
    *granted->mutable_resource() = ToProto(kDirectory);
    granted->set_mode(proto::LEASE_READ);
    granted->set_id(lease);
    return reply;
  }

  bool Holds(uint64_t lease) {
    const InodePtr inode = inodes_->Get(kDirectory);
    std::lock_guard lock(inode->mutex);
    return inode->scope != nullptr && inode->scope->lease() == lease;
  }

  std::unique_ptr<InodeTable> inodes_;
  std::unique_ptr<HeldLeases> leases_;
};

TEST_F(HeldLeasesTest, LearnsUnderWhatCameWithTheAnswerOrWasHeldBefore) {
  Learning before = leases_->BeginLearning();
  Learning with = leases_->BeginLearning();
  EXPECT_TRUE(leases_->Take(&with, Granting(5)).empty());
  EXPECT_TRUE(Holds(5));
  EXPECT_NE(leases_->For(with, kDirectory), nullptr);
  EXPECT_EQ(leases_->For(before, kDirectory), nullptr) << "another client may have changed something since";
  EXPECT_NE(leases_->For(leases_->BeginLearning(), kDirectory), nullptr);
}

TEST_F(HeldLeasesTest, AGrantThatItsRevocationHasOvertakenIsNotTaken) {
  Learning learning = leases_->BeginLearning();
  const auto revoked = leases_->EndRevoked(inodes_->Get(kDirectory), 5);
  ASSERT_TRUE(revoked.has_value());
  EXPECT_EQ(*revoked, nullptr);
  EXPECT_TRUE(leases_->Take(&learning, Granting(5)).empty());
  EXPECT_FALSE(Holds(5));
  EXPECT_FALSE(leases_->EndRevoked(inodes_->Get(kDirectory), 5).has_value()) << "it is on its way already";
}

// The MDS does not give an id a second time; what is remembered must not grow for ever all the same.
TEST_F(HeldLeasesTest, WhatWasGivenUpIsForgottenWithTheLastAnswerOfThatTime) {
  {
    Learning learning = leases_->BeginLearning();
    leases_->NoteGivenUp(5);
    Learning later = leases_->BeginLearning();
    EXPECT_TRUE(leases_->Take(&later, Granting(5)).empty());
    EXPECT_FALSE(Holds(5));
  }
  Learning learning = leases_->BeginLearning();
  EXPECT_TRUE(leases_->Take(&learning, Granting(5)).empty());
  EXPECT_TRUE(Holds(5));
}

TEST_F(HeldLeasesTest, AReclaimThatDidNotNameItEndsAGrant) {
  Learning learning = leases_->BeginLearning();
  leases_->BeginReclaim();
  EXPECT_TRUE(leases_->Take(&learning, Granting(5)).empty());
  EXPECT_FALSE(Holds(5));
}

TEST_F(HeldLeasesTest, ANewLeaseOfADirectoryEndsTheOneBefore) {
  Learning first = leases_->BeginLearning();
  EXPECT_TRUE(leases_->Take(&first, Granting(5)).empty());
  Learning second = leases_->BeginLearning();
  const std::vector<ScopePtr> ended = leases_->Take(&second, Granting(6));
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0]->lease(), 5u);
  EXPECT_FALSE(ended[0]->good());
  EXPECT_TRUE(Holds(6));
}

TEST_F(HeldLeasesTest, NoLeaseCoversFilesWhileAChangeMayTakeThemOut) {
  Learning learning = leases_->BeginLearning();
  EXPECT_TRUE(leases_->Take(&learning, Granting(5)).empty());
  const InodePtr directory = inodes_->Get(kDirectory);
  const ScopePtr last = leases_->LastOf(*directory, /*moves=*/true);
  ASSERT_NE(last, nullptr);
  EXPECT_TRUE(last->good());
  EXPECT_FALSE(last->CoversFiles());
  Learning meanwhile = leases_->BeginLearning();
  EXPECT_EQ(leases_->Take(&meanwhile, Granting(6)).size(), 1u);
  EXPECT_FALSE(leases_->For(meanwhile, kDirectory)->CoversFiles()) << "the change is under way still";
}

}  // namespace
}  // namespace nacre::client
