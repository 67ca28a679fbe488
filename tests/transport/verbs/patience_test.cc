#include "transport/verbs/patience.h"

#include <gtest/gtest.h>

namespace nacre::verbs {
namespace {

TEST(PatienceTest, FollowsWhatComesSoonAndForgetsIt) {
  Patience patience(50us);
  EXPECT_EQ(patience.current(), 50us);
  patience.Came(0us, 200us);
  EXPECT_EQ(patience.current(), 400us);
  patience.Came(200us, 210us);
  EXPECT_EQ(patience.current(), 400us);
  for (int i = 0; i < 4; ++i) patience.Came(1s, 2s);
  EXPECT_EQ(patience.current(), 50us);
}

TEST(PatienceTest, NeverWaitsForWhatTakesLong) {
  Patience patience(50us);
  patience.Came(0us, 900us);
  EXPECT_EQ(patience.current(), 1ms);
  EXPECT_EQ(Patience(2ms).current(), 2ms);
}

}  // namespace
}  // namespace nacre::verbs
