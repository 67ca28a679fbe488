// What one lease of a directory takes over from the one before it. A directory that passes from one client to
// another and back again and again has hundreds of leases in a row.
#include "client/scope.h"

#include <gtest/gtest.h>

namespace nacre::client {
namespace {

using namespace std::chrono_literals;

const Fid kDirectory{1, 2, 0}, kFile{1, 3, 0}, kOther{1, 4, 0};

ScopePtr NewScope(uint64_t lease) { return std::make_shared<Scope>(kDirectory, lease, lease, 1s); }

TEST(Scope, APromiseIsAsLongForEachLeaseThatTakesItOver) {
  ScopePtr scope = NewScope(1);
  scope->PromiseUntil(10s);
  const Duration promised = scope->promised();
  EXPECT_GE(promised, 10s);
  for (uint64_t lease = 2; lease < 500; ++lease) {
    scope->End();
    ScopePtr next = NewScope(lease);
    next->Inherit(*scope);
    scope = next;
  }
  EXPECT_EQ(scope->promised(), promised);
}

TEST(Scope, WhatTheKernelHasForgottenIsNotForgottenAgainWithEachLease) {
  ScopePtr first = NewScope(1);
  EXPECT_TRUE(first->NotePages(kFile));
  EXPECT_TRUE(first->NotePages(kOther));
  first->End();
  first->ForgotPages({kFile});
  ScopePtr second = NewScope(2);
  second->Inherit(*first);
  EXPECT_EQ(second->paged(), std::vector<Fid>{kOther}) << "only that is under way still";
}

TEST(Scope, NorIsDataGivenUpAgain) {
  ScopePtr first = NewScope(1);
  EXPECT_TRUE(first->NoteData(kFile));
  EXPECT_TRUE(first->NoteData(kOther));
  first->End();
  first->GaveUpData({kOther});
  ScopePtr second = NewScope(2);
  second->Inherit(*first);
  EXPECT_EQ(second->with_data(), std::vector<Fid>{kFile});
}

}  // namespace
}  // namespace nacre::client
