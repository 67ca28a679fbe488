#include "server/metadata/open_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nacre::mds {
namespace {

using testing::ElementsAre;

const Fid kOpenA{5, 1, 0}, kOpenB{5, 2, 0};

class OpenTableTest : public testing::Test {
 protected:
  OpenTable table;
};

TEST_F(OpenTableTest, CountsHandles) {
  table.Open(1, kOpenA, false, 1);
  table.Open(1, kOpenA, true, 1);
  table.Open(2, kOpenA, false, 1);
  EXPECT_EQ(table.CountOf(1), 1u);
  table.Close(1, kOpenA, 1, true);
  table.Close(1, kOpenA, 1, false);
  EXPECT_EQ(table.CountOf(1), 0u);
  EXPECT_TRUE(table.IsOpen(kOpenA));
  table.Close(2, kOpenA, 5, false);
  EXPECT_FALSE(table.IsOpen(kOpenA));
  table.Close(2, kOpenA, 1, false);
  EXPECT_FALSE(table.IsOpen(kOpenA));
}

TEST_F(OpenTableTest, SaysWhoWritesAlone) {
  EXPECT_TRUE(table.IsSoleWriter(1, kOpenA));
  table.Open(1, kOpenA, true, 1);
  table.Open(2, kOpenA, false, 1);
  EXPECT_TRUE(table.IsSoleWriter(1, kOpenA));
  EXPECT_FALSE(table.IsSoleWriter(2, kOpenA));
  table.Open(2, kOpenA, true, 1);
  EXPECT_FALSE(table.IsSoleWriter(1, kOpenA));
  table.Close(2, kOpenA, 1, true);
  EXPECT_TRUE(table.IsSoleWriter(1, kOpenA));
}

TEST_F(OpenTableTest, WhatIsHeldStaysUntilAllOfItIsClosed) {
  table.Open(1, kOpenA, false, 1);
  table.Hold(1, kOpenA);
  table.Close(1, kOpenA, 1, false);
  EXPECT_TRUE(table.IsOpen(kOpenA));
  table.Close(1, kOpenA, 0, false);
  EXPECT_FALSE(table.IsOpen(kOpenA));
}

TEST_F(OpenTableTest, ReplaceEndsWhatItDoesNotName) {
  table.Open(1, kOpenA, true, 1);
  table.Open(1, kOpenA, true, 1);
  table.Open(1, kOpenB, false, 1);
  table.Open(2, kOpenB, false, 1);
  table.Replace(1, {{kOpenA, 1, false}}, 2);
  EXPECT_THAT(table.FilesOf(1), ElementsAre(kOpenA));
  EXPECT_THAT(table.FilesOf(2), ElementsAre(kOpenB));
  table.Close(1, kOpenA, 1, false);
  EXPECT_FALSE(table.IsOpen(kOpenA));
}

TEST_F(OpenTableTest, ReplaceKeepsWhatIsHeld) {
  table.Open(1, kOpenA, false, 1);
  table.Hold(1, kOpenA);
  table.Replace(1, {}, 2);
  EXPECT_TRUE(table.IsOpen(kOpenA));
  table.Close(1, kOpenA, 0, false);
  EXPECT_FALSE(table.IsOpen(kOpenA));
}

TEST_F(OpenTableTest, AnOpenOfAnEarlierStreamComesTooLate) {
  table.Replace(1, {}, 2);
  table.Open(1, kOpenA, false, 1);
  EXPECT_FALSE(table.IsOpen(kOpenA));
  table.Open(1, kOpenA, false, 2);
  EXPECT_TRUE(table.IsOpen(kOpenA));
}

TEST_F(OpenTableTest, SetReplacesOneFile) {
  table.Open(1, kOpenA, false, 1);
  table.Open(1, kOpenB, false, 1);
  table.Set(1, {kOpenA, 2, true}, 1);
  table.Close(1, kOpenA, 1, true);
  EXPECT_TRUE(table.IsOpen(kOpenA));
  table.Set(1, {kOpenA, 0, false}, 1);
  EXPECT_FALSE(table.IsOpen(kOpenA));
  EXPECT_TRUE(table.IsOpen(kOpenB));
}

TEST_F(OpenTableTest, ReplaceKeepsWhatWasSetOverTheSameStream) {
  table.Open(1, kOpenA, true, 1);
  table.Open(1, kOpenB, true, 1);
  table.Set(1, {kOpenA, 1, true}, 2);
  table.Replace(1, {}, 2);
  EXPECT_THAT(table.FilesOf(1), ElementsAre(kOpenA));
  table.Set(1, {kOpenA, 1, true}, 3);
  table.Replace(1, {}, 4);
  EXPECT_THAT(table.FilesOf(1), ElementsAre());
}

TEST_F(OpenTableTest, ASessionEndsWithAllThatItHas) {
  table.Open(1, kOpenA, true, 1);
  table.Hold(1, kOpenB);
  table.Open(2, kOpenA, false, 1);
  table.DropSession(1);
  EXPECT_EQ(table.CountOf(1), 0u);
  EXPECT_TRUE(table.IsOpen(kOpenA));
  EXPECT_FALSE(table.IsOpen(kOpenB));
}

}  // namespace
}  // namespace nacre::mds
