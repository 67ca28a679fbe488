#include "rpc/request_queue.h"

#include <gtest/gtest.h>

namespace nacre {
namespace {

using Queue = RequestQueue<int>;

TEST(RequestQueue, BeginsInBurstsInTheOrderOfArrival) {
  Queue queue;
  EXPECT_FALSE(queue.CanBegin());
  for (int i = 0; i < 100; ++i) queue.Add(i, 10);
  std::vector<int> begun = queue.Begin();
  ASSERT_EQ(begun.size(), Queue::kBurst);
  for (int i = 0; i < static_cast<int>(begun.size()); ++i) EXPECT_EQ(begun[i], i);
  EXPECT_TRUE(queue.CanBegin());
  EXPECT_EQ(queue.Begin().size(), 100 - Queue::kBurst);
  EXPECT_FALSE(queue.CanBegin());
}

TEST(RequestQueue, WhatIsNotAnsweredCounts) {
  Queue queue;
  for (size_t i = 0; i < Queue::kMaxBegun + 1; ++i) queue.Add(7, 1);
  size_t begun = 0;
  while (queue.CanBegin()) begun += queue.Begin().size();
  EXPECT_EQ(begun, Queue::kMaxBegun);
  queue.Ended();
  EXPECT_EQ(queue.Begin().size(), 1u);
}

TEST(RequestQueue, ReadingPausesWhileTooManyBytesWait) {
  Queue queue;
  queue.Add(1, Queue::kMaxWaitingBytes);
  EXPECT_TRUE(queue.HasRoom());
  queue.Add(2, 1);
  EXPECT_FALSE(queue.HasRoom());
  queue.Begin();
  EXPECT_TRUE(queue.HasRoom());
  queue.Add(3, Queue::kMaxWaitingBytes + 1);
  queue.Clear();
  EXPECT_TRUE(queue.HasRoom());
  EXPECT_FALSE(queue.CanBegin());
}

}  // namespace
}  // namespace nacre
