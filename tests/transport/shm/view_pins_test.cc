#include "transport/shm/view_pins.h"

#include <gtest/gtest.h>

#include <atomic>

#include "common/runtime.h"
#include "tests/transport/fake_device.h"
#include "transport/shm/shm_memory.h"

namespace nacre::shm {
namespace {

constexpr size_t kUnit = MemoryDevice::kPinUnit;

class ViewPinsTest : public testing::Test {
 protected:
  // As if the server had used all up to there.
  void Use(size_t end) {
    for (size_t unit = ToUnit(); unit < end; unit += kUnit) {
      memory_->data()[unit - 1] = std::byte{1};
      memory_->data()[unit] = std::byte{1};
    }
    memory_->data()[end - 1] = std::byte{1};
  }
  Task<Status> Pinning(size_t offset, size_t length) {
    auto* begin = const_cast<std::byte*>(views_.at(0)->bytes().data()) + offset;
    co_await ViewPins::Pin(pins_, device_, Pieces(1, {begin, length}));
    co_return OkStatus();
  }
  void Pin(size_t offset, size_t length) { runtime_.Run(Pinning(offset, length)).IgnoreError(); }
  // From the view's first byte to the first that begins a unit.
  size_t ToUnit() const { return kUnit - reinterpret_cast<uintptr_t>(views_.at(0)->bytes().data()) % kUnit; }

  Runtime runtime_{1};
  const std::shared_ptr<FakeDevice> device_ = std::make_shared<FakeDevice>(4096);
  const std::shared_ptr<SharedMemory> memory_ = SharedMemory::Create("nacre-test", 6 * kUnit).value();
  const Views views_{SharedView::Map(memory_->fd(), memory_->size()).value()};
  const std::shared_ptr<ViewPins> pins_ = std::make_shared<ViewPins>(views_);
};

TEST_F(ViewPinsTest, OnlyTheUnitsThatAreRead) {
  const size_t first = ToUnit();
  Pin(first + kUnit + 100, 4096);
  Pin(first + 2 * kUnit - 1, 1);
  EXPECT_EQ(device_->pins(), 1);
  EXPECT_EQ(device_->pinned().data(), views_.at(0)->bytes().data() + first + kUnit);
  EXPECT_EQ(device_->pinned().size(), kUnit);
  Pin(first + kUnit - 1, 2);
  EXPECT_EQ(device_->pins(), 2);
  Pin(first, 2 * kUnit);
  EXPECT_EQ(device_->pins(), 2);
}

TEST_F(ViewPinsTest, TheNextUnitsWhereOneIsReadAfterTheOther) {
  const size_t first = ToUnit();
  Use(memory_->size());
  Pin(first, 4096);
  EXPECT_EQ(device_->pins(), 1);
  Pin(first + kUnit, 4096);
  for (int i = 0; i < 1000 && device_->pins() < 4; ++i) Pin(first, 4096);
  EXPECT_EQ(device_->pins(), 2 + ViewPins::kAhead);
  Pin(first + 2 * kUnit, 4096);
  for (int i = 0; i < 1000 && device_->pins() < 5; ++i) Pin(first, 4096);
  EXPECT_EQ(device_->pins(), 3 + ViewPins::kAhead);
  Pin(first, memory_->size() - first);  // to the view's end, and not further
  EXPECT_EQ(device_->pins(), static_cast<int>((memory_->size() - first + kUnit - 1) / kUnit));
}

// It would be given memory, of the kind that takes longest to be pinned.
TEST_F(ViewPinsTest, NoneAheadThatTheServerHasNotUsed) {
  const size_t first = ToUnit();
  Use(first + 3 * kUnit);
  Pin(first, kUnit + 1);
  for (int i = 0; i < 1000 && device_->pins() < 3; ++i) Pin(first, 4096);
  Pin(first + 2 * kUnit, 4096);
  for (int i = 0; i < 100; ++i) Pin(first, 4096);
  EXPECT_EQ(device_->pins(), 3);
}

// Else each of them would have each unit pinned anew.
TEST_F(ViewPinsTest, ConnectionsToOneServerShareThem) {
  ShmMemory memory;
  const Views other{SharedView::Map(memory_->fd(), memory_->size()).value()};
  std::shared_ptr<ViewPins> pins = memory.Pins(views_);
  EXPECT_EQ(memory.Pins(views_), pins);
  EXPECT_NE(memory.Pins(other), pins);
  const std::weak_ptr<ViewPins> gone = pins;
  pins = nullptr;
  EXPECT_TRUE(gone.expired()) << "they go with the last connection";
  EXPECT_EQ(memory.Pins(views_)->views(), views_);
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
  Pin(ToUnit() + 3 * kUnit, 1);
  device_->FailPins(OkStatus());
  Pin(ToUnit() + 3 * kUnit, 1);
  Pin(ToUnit() + 3 * kUnit, 1);
  EXPECT_EQ(device_->pins(), 3);
}

TEST_F(ViewPinsTest, OneOfThoseWhoWantAUnitAsksForIt) {
  device_->HoldPins();
  std::atomic<int> ended = 0;
  for (size_t i = 0; i < 3; ++i)
    Spawn(runtime_.executor(), Pinning(ToUnit() + i * 4096, 4096), [&](const Status&) { ++ended; });
  Spawn(runtime_.executor(), Pinning(ToUnit() + 3 * kUnit, 4096), [&](const Status&) { ++ended; });
  runtime_.Run(Pinning(0, 0)).IgnoreError();  // behind the others, on the one thread
  EXPECT_EQ(device_->pins(), 2);
  EXPECT_EQ(ended, 0);
  device_->Resume();
  Pin(ToUnit(), 1);
  for (int i = 0; i < 1000 && ended < 4; ++i) runtime_.Run(Pinning(0, 0)).IgnoreError();
  EXPECT_EQ(ended, 4);
  EXPECT_EQ(device_->pins(), 2);
}

// Those who waited go on without it, and the next one asks again.
TEST_F(ViewPinsTest, NobodyWaitsForWhatCannotBePinnedNow) {
  device_->FailPins(ErrnoError(EBUSY, "not now"));
  device_->HoldPins();
  std::atomic<int> ended = 0;
  for (int i = 0; i < 2; ++i)
    Spawn(runtime_.executor(), Pinning(ToUnit(), 4096), [&](const Status&) { ++ended; });
  runtime_.Run(Pinning(0, 0)).IgnoreError();
  device_->Resume();
  for (int i = 0; i < 1000 && ended < 2; ++i) runtime_.Run(Pinning(0, 0)).IgnoreError();
  EXPECT_EQ(ended, 2);
  EXPECT_EQ(device_->pins(), 1);
  device_->FailPins(OkStatus());
  Pin(ToUnit(), 4096);
  EXPECT_EQ(device_->pins(), 2);
}

}  // namespace
}  // namespace nacre::shm
