#include "transport/shm/view_pins.h"

#include <gtest/gtest.h>

#include "common/runtime.h"
#include "tests/transport/fake_device.h"

namespace nacre::shm {
namespace {

constexpr size_t kUnit = MemoryDevice::kPinUnit;

class ViewPinsTest : public testing::Test {
 protected:
  void Pin(size_t offset, size_t length) {
    auto* begin = const_cast<std::byte*>(views_.at(0)->bytes().data()) + offset;
    runtime_
        .Run([](ViewPinsTest* test, iovec piece) -> Task<Status> {
          co_await test->pins_.Pin(test->device_, test->views_, Pieces(1, piece));
          co_return OkStatus();
        }(this, {begin, length}))
        .IgnoreError();
  }
  // From the view's first byte to the first that begins a unit.
  size_t ToUnit() const { return kUnit - reinterpret_cast<uintptr_t>(views_.at(0)->bytes().data()) % kUnit; }

  Runtime runtime_{1};
  const std::shared_ptr<FakeDevice> device_ = std::make_shared<FakeDevice>(4096);
  const std::shared_ptr<SharedMemory> memory_ = SharedMemory::Create("nacre-test", 4 * kUnit).value();
  const Views views_{SharedView::Map(memory_->fd(), memory_->size()).value()};
  ViewPins pins_;
};

TEST_F(ViewPinsTest, OnlyTheUnitsThatAreRead) {
  const size_t first = ToUnit();
  Pin(first + 100, 4096);
  Pin(first + kUnit - 1, 1);
  EXPECT_EQ(device_->pins(), 1);
  EXPECT_EQ(device_->pinned().data(), views_.at(0)->bytes().data() + first);
  EXPECT_EQ(device_->pinned().size(), kUnit);
  Pin(first + kUnit - 1, 2);
  EXPECT_EQ(device_->pins(), 2);
  Pin(first, 2 * kUnit);
  EXPECT_EQ(device_->pins(), 2);
}

TEST_F(ViewPinsTest, TheFirstAndTheLastUnitOfAViewEndWithIt) {
  Pin(0, 1);
  EXPECT_EQ(device_->pinned().data(), views_.at(0)->bytes().data());
  EXPECT_EQ(device_->pinned().size(), ToUnit());
  Pin(memory_->size() - 1, 1);
  EXPECT_EQ(device_->pinned().data() + device_->pinned().size(),
            views_.at(0)->bytes().data() + memory_->size());
  EXPECT_LE(device_->pinned().size(), kUnit);
}

TEST_F(ViewPinsTest, WhatCannotBePinnedIsTriedOnceAndWhatCannotNowAgain) {
  device_->FailPins(ErrnoError(ENOTSUP, "no"));
  Pin(ToUnit(), 1);
  Pin(ToUnit(), 1);
  EXPECT_EQ(device_->pins(), 1);
  device_->FailPins(ErrnoError(EBUSY, "not now"));
  Pin(ToUnit() + kUnit, 1);
  device_->FailPins(OkStatus());
  Pin(ToUnit() + kUnit, 1);
  Pin(ToUnit() + kUnit, 1);
  EXPECT_EQ(device_->pins(), 3);
}

}  // namespace
}  // namespace nacre::shm
