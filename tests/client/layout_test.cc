#include "client/layout.h"

#include <gtest/gtest.h>

#include <map>

namespace nacre::client {
namespace {

struct Shape {
  uint64_t end;
  uint32_t stripe_size;
  uint32_t stripes;
};

LayoutPtr MakeLayout(const std::vector<Shape>& shapes) {
  proto::Layout layout;
  layout.set_generation(3);
  layout.set_object_sequence(77);
  uint32_t ost = 0;
  for (const Shape& shape : shapes) {
    proto::Component* component = layout.add_components();
    component->set_end(shape.end);
    component->set_stripe_size(shape.stripe_size);
    for (uint32_t i = 0; i < shape.stripes; ++i) component->add_ost_group(ost++);
  }
  auto made = LayoutMap::Make(layout);
  EXPECT_TRUE(made.ok()) << made.status();
  return *made;
}

constexpr uint64_t kUnit = 64 << 10;

// The rule of types.proto, byte by byte.
StripePiece ByRule(const std::vector<Shape>& shapes, uint64_t offset) {
  uint64_t start = 0;
  uint32_t first = 0;
  for (const Shape& shape : shapes) {
    if (offset < shape.end) {
      uint64_t o = offset - start;
      StripePiece piece;
      piece.file_offset = offset;
      piece.length = 1;
      piece.stripe = first + static_cast<uint32_t>(o / shape.stripe_size % shape.stripes);
      piece.ost = piece.stripe;
      piece.object_offset = o / shape.stripe_size / shape.stripes * shape.stripe_size + o % shape.stripe_size;
      return piece;
    }
    start = shape.end;
    first += shape.stripes;
  }
  return {};
}

const std::vector<std::vector<Shape>>& Shapes() {
  static const std::vector<std::vector<Shape>> shapes = {
      {{UINT64_MAX, kUnit, 1}},
      {{UINT64_MAX, kUnit, 3}},
      {{UINT64_MAX, 2 * kUnit, 4}},
      {{2 * kUnit, kUnit, 1}, {10 * kUnit, kUnit, 3}, {UINT64_MAX, 2 * kUnit, 5}},
      {{4 * kUnit, 2 * kUnit, 2}, {UINT64_MAX, kUnit, 1}},
  };
  return shapes;
}

TEST(Layout, FollowsTheRuleEverywhere) {
  for (const auto& shapes : Shapes()) {
    LayoutPtr layout = MakeLayout(shapes);
    for (uint64_t offset = 0; offset < 40 * kUnit; offset += kUnit / 4) {
      for (uint64_t at : {offset, offset + 1, offset + kUnit / 4 - 1})
        ASSERT_EQ(layout->At(at, 1), ByRule(shapes, at)) << at;
    }
  }
}

TEST(Layout, PiecesCoverAnExtentOnceAndInOrder) {
  for (const auto& shapes : Shapes()) {
    LayoutPtr layout = MakeLayout(shapes);
    for (uint64_t begin = 0; begin < 14 * kUnit; begin += kUnit / 2 + 17) {
      for (uint64_t length : {uint64_t{1}, kUnit - 1, kUnit, 5 * kUnit + 3, 20 * kUnit}) {
        uint64_t at = begin;
        for (const StripePiece& piece : layout->Map(begin, length)) {
          ASSERT_EQ(piece.file_offset, at);
          ASSERT_GT(piece.length, 0u);
          StripePiece last = ByRule(shapes, piece.file_offset + piece.length - 1);
          ASSERT_EQ(last.stripe, piece.stripe);
          ASSERT_EQ(last.object_offset, piece.object_offset + piece.length - 1);
          at += piece.length;
        }
        ASSERT_EQ(at, begin + length);
      }
    }
  }
}

TEST(Layout, OneStripeIsOnePiece) { EXPECT_EQ(MakeLayout(Shapes()[0])->Map(5, 100 * kUnit).size(), 1u); }

TEST(Layout, FileOffsetIsTheInverse) {
  for (const auto& shapes : Shapes()) {
    LayoutPtr layout = MakeLayout(shapes);
    for (uint64_t offset = 0; offset < 40 * kUnit; offset += kUnit / 4 + 1) {
      StripePiece piece = layout->At(offset, 1);
      ASSERT_EQ(layout->FileOffset(piece.stripe, piece.object_offset), offset);
    }
  }
}

TEST(Layout, FileOffsetBehindAComponentIsNowhere) {
  LayoutPtr layout = MakeLayout(Shapes()[3]);
  EXPECT_EQ(layout->FileOffset(0, 2 * kUnit - 1), 2 * kUnit - 1);
  EXPECT_EQ(layout->FileOffset(0, 2 * kUnit), UINT64_MAX);
}

TEST(Layout, ObjectEndCountsTheBytesBefore) {
  for (const auto& shapes : Shapes()) {
    LayoutPtr layout = MakeLayout(shapes);
    std::map<uint32_t, uint64_t> ends;
    constexpr uint64_t kStep = kUnit / 8;
    for (uint64_t offset = 0; offset < 30 * kUnit; offset += kStep) {
      for (uint32_t stripe = 0; stripe < layout->stripe_count(); ++stripe) {
        ASSERT_EQ(layout->ObjectEnd(stripe, offset), ends[stripe]) << "stripe " << stripe << " at " << offset;
      }
      ends[layout->At(offset, 1).stripe] += kStep;
    }
  }
}

TEST(Layout, RefusesWhatCannotBe) {
  auto refused = [](std::vector<Shape> shapes) {
    proto::Layout layout;
    for (const Shape& shape : shapes) {
      proto::Component* component = layout.add_components();
      component->set_end(shape.end);
      component->set_stripe_size(shape.stripe_size);
      for (uint32_t i = 0; i < shape.stripes; ++i) component->add_ost_group(i);
    }
    return !LayoutMap::Make(layout).ok();
  };
  EXPECT_TRUE(refused({}));
  EXPECT_TRUE(refused({{UINT64_MAX, 4096, 1}}));
  EXPECT_TRUE(refused({{UINT64_MAX, 0, 1}}));
  EXPECT_TRUE(refused({{UINT64_MAX, kUnit, 0}}));
  EXPECT_TRUE(refused({{kUnit, kUnit, 1}}));
  EXPECT_TRUE(refused({{kUnit + 1, kUnit, 1}, {UINT64_MAX, kUnit, 1}}));
  EXPECT_TRUE(refused({{UINT64_MAX, kUnit, 1}, {UINT64_MAX, kUnit, 1}}));
  EXPECT_FALSE(refused({{kUnit, kUnit, 1}, {UINT64_MAX, kUnit, 2}}));
}

}  // namespace
}  // namespace nacre::client
